"""A path and what can be done with it: one place for 405, HEAD and the tokens' scopes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from . import access
from .front import front
from .problems import Problem

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the table of routes. `scope` is what a token needs, None for everybody.

    The rest is for the OpenAPI document: the success status, the types of its body and of the request's, the names of
    the parameters that are read from the query or the headers, the headers of a success, and the statuses of the
    answers that come beside it and do not follow from all this.
    """

    method: str
    path: str
    endpoint: Endpoint
    scope: str | None
    status: int
    answer: Any
    body: Any = None
    parameters: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    media_type: str = "application/json"


class Resource:
    """The ASGI application of one path."""

    def __init__(self, path: str, operations: dict[str, Operation]) -> None:
        self.path = path
        self._operations = operations
        methods = set(operations) | ({"HEAD"} if "GET" in operations else set())
        self._allow = ", ".join(sorted(methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises Problem (405) for a method that the path does not have."""
        request = Request(scope, receive, send)
        operation = self._operations.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            raise Problem(405, "method-not-allowed", f"this path allows {self._allow}", {"Allow": self._allow})
        request.state.actor = access.authorise(request, front(request).settings.tokens, operation.scope)
        response = await operation.endpoint(request)
        await response(scope, receive, send)


def routes(operations: tuple[Operation, ...]) -> list[Route]:
    """One route per path, in the order of the table."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return [Route(path, Resource(path, found), name=path) for path, found in paths.items()]
