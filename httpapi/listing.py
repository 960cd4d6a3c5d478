"""GET /tasks: a window on the tasks, newest first, with a cursor to the next."""

from __future__ import annotations

import re
import time
from urllib.parse import unquote
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from ..runtime import db
from ..runtime.states import State
from ..runtime.store import read
from ..runtime.store.read import Filter, Page
from . import wire
from .asking import is_name
from .front import front
from .problems import Problem

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
CURSOR = "^[0-9a-f]{32}$"
_CURSOR = re.compile(CURSOR)
_KNOWN = {"state", "kind", "queue", "limit", "cursor"}


async def list_tasks(request: Request) -> Response:
    """Tasks by state, kind and queue. A page may hold fewer than `limit` although `next` is not null."""
    here = front(request)
    query = request.query_params
    _check_utf8(request.url.query)
    for name in query:
        if name not in _KNOWN or len(query.getlist(name)) > 1:
            raise _invalid(name, f"unknown or given twice; known: {', '.join(sorted(_KNOWN))}")
    chosen = Filter(_state(query), _text(query, "kind"), _text(query, "queue"))
    before, limit, deadline = _cursor(query), _limit(query), here.deadline()
    page = await here.pool.run(lambda connection: _find(connection, chosen, before, limit, deadline), deadline)
    next = None if page.more is None else page.more.hex
    answer = wire.Page([wire.task(row) for row in page.tasks], next)
    return Response(wire.encode(answer), media_type="application/json")


def _find(connection: db.Connection, chosen: Filter, before: UUID, limit: int, deadline: float) -> Page:
    """Go on past stretches without a match, as long as half of the time is left for the answer."""
    enough = time.monotonic() + (deadline - time.monotonic()) / 2
    page = read.page(connection, chosen, before, limit)
    while not page.tasks and page.more is not None and time.monotonic() < enough:
        page = read.page(connection, chosen, page.more, limit)
    return page


def _check_utf8(query: str) -> None:
    """Starlette puts U+FFFD for what is not UTF-8: then nothing would be found, and nobody would know why."""
    for part in query.split("&"):
        try:
            unquote(part, errors="strict")
        except UnicodeDecodeError:
            raise _invalid(part.partition("=")[0], "it is not UTF-8") from None


def _state(query: QueryParams) -> str | None:
    state = query.get("state")
    if state is not None and state not in list(State):
        raise _invalid("state", f"must be one of {', '.join(State)}")
    return state


def _text(query: QueryParams, name: str) -> str | None:
    text = query.get(name)
    if text is not None and not is_name(text):
        raise _invalid(name, "must be 1 to 200 printable characters, without spaces around them")
    return text


def _limit(query: QueryParams) -> int:
    text = query.get("limit", str(DEFAULT_LIMIT))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_LIMIT:
        raise _invalid("limit", f"must be a number from 1 to {MAX_LIMIT}")
    return int(text)


def _cursor(query: QueryParams) -> UUID:
    text = query.get("cursor")
    if text is None:
        return read.NEWEST
    if not _CURSOR.fullmatch(text):
        raise _invalid("cursor", "must be the `next` of an earlier page")
    return UUID(hex=text)


def _invalid(name: str, what: str) -> Problem:
    return Problem(422, "invalid-request", f"the query parameter {name!r}: {what}")
