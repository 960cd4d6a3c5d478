"""Every answer is counted: by the route that was matched, never by the path that was asked for."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..metrics.api import ApiCounter
from .resource import Resource


class Metered:
    """Middleware; the outermost one, so that it also sees what other middleware refuses."""

    def __init__(self, app: ASGIApp, counter: ApiCounter) -> None:
        self._app = app
        self._counter = counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        code = 0

        async def listen(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, listen)
        finally:
            # The router writes into this very scope which endpoint it has found.
            endpoint = scope.get("endpoint")
            route = endpoint.path if isinstance(endpoint, Resource) else None
            self._counter.answered(route, scope["method"], code, time.monotonic() - began)
