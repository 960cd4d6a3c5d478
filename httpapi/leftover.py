"""A response that leaves the server before the request's body came in: the rest must not get in the way.

Hypercorn hands the body over through a short queue. When nobody reads it the connection stays open for ever, and when
it is closed at once the client may lose the answer it was about to read. So the rest is read and thrown away, within
bounds, before the response begins; past the bounds the connection is closed after it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: How much of an unwanted body is read for the client's sake, in seconds and bytes.
PATIENCE = 1.0
MAX_BYTES = 8 * 1024 * 1024


class Leftover:
    """Middleware; the outermost one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            exchange.stop()


class _Exchange:
    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._complete = False
        self._discarding: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self._complete = self._complete or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self._complete:
            await self._discard()
            if not self._complete:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                self._discarding = asyncio.create_task(self._discard_all())
        await self._send(message)

    def stop(self) -> None:
        if self._discarding is not None:
            self._discarding.cancel()

    async def _discard(self) -> None:
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not self._complete and size < MAX_BYTES:
                    size += len((await self.receive()).get("body", b""))

    async def _discard_all(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
