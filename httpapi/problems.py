"""Problem details (RFC 9457): every answer that is not 2xx, and the one table from exceptions to answers."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..runtime.errors import (
    DatabaseUnavailable,
    DeadsureError,
    InDoubt,
    NotStorable,
    StatementRefused,
    StoreError,
    UnknownKind,
    Unreachable,
)
from ..runtime.events import emit
from ..runtime.store.submit import BudgetExceeded, KeyTaken

MEDIA_TYPE = "application/problem+json"

#: The phrases of RFC 9110, which Python before 3.13 does not have yet.
_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}

#: (exception, status, name in `type`). The first match counts, so subclasses stand before their bases.
TABLE: tuple[tuple[type[Exception], int, str], ...] = (
    (UnknownKind, 422, "unknown-kind"),
    (BudgetExceeded, 422, "invalid-request"),
    (NotStorable, 400, "malformed-json"),
    (KeyTaken, 422, "idempotency-key-reused"),
    (InDoubt, 503, "outcome-in-doubt"),
    (StoreError, 503, "database-unavailable"),
)


class Problem(DeadsureError):
    """An answer that an endpoint decided on. `more` are further members of the document."""

    def __init__(
        self, status: int, name: str, detail: str, headers: Mapping[str, str] | None = None, **more: object
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.headers = dict(headers or {})
        self.more = more


def of(error: Exception) -> Problem:
    """What to answer to this exception. What no line of the table knows is a bug of ours: 500."""
    if isinstance(error, Problem):
        return error
    said = error.public if isinstance(error, Unreachable) else str(error)
    for kind, status, name in TABLE:
        if isinstance(error, kind):
            return Problem(status, name, said)
    return Problem(500, "internal-error", "this is a bug in deadsure; the server's log has the details")


def title(status: int) -> str:
    """The phrase of a status, the same on every Python."""
    return _TITLES.get(status) or HTTPStatus(status).phrase


def document(problem: Problem) -> bytes:
    """The problem as JSON."""
    return msgspec.json.encode(
        {
            "type": f"urn:deadsure:problem:{problem.name}",
            "title": title(problem.status),
            "status": problem.status,
            "detail": str(problem),
            **problem.more,
        }
    )


def respond(problem: Problem) -> Response:
    """The problem as a response. Every 503 and 429 says when to come back."""
    headers = dict(problem.headers)
    if problem.status in (429, 503):
        headers.setdefault("Retry-After", "1")
    return Response(document(problem), problem.status, headers, MEDIA_TYPE)


async def answer(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for everything."""
    if isinstance(error, HTTPException):
        error = _from_starlette(error)
    elif isinstance(error, InDoubt) and request.method in ("GET", "HEAD"):
        # A question may be asked again: nothing can have been done.
        error = DatabaseUnavailable("the database's answer did not come in time; nothing was changed")
    problem = of(error)
    if problem.status == 500:
        emit("a request hit a bug", method=request.method, path=request.url.path, error=repr(error))
    elif isinstance(error, StatementRefused):
        emit("the database refused a statement", path=request.url.path, error=str(error))
    return respond(problem)


def _from_starlette(error: HTTPException) -> Problem:
    name = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return Problem(error.status_code, name, error.detail, error.headers)
