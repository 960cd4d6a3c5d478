"""One connection: HTTP/1.1 and nothing else, and no client that holds an answer for ever.

Hypercorn would also speak HTTP/2 without TLS, to whoever begins with it or asks for it, and WebSocket. Nothing here
needs them, and each is a parser more that a stranger can reach. So a request to change the protocol is not followed,
which RFC 9110 (section 7.8) leaves to the server, and the preface of HTTP/2 is a request of another version, which the
guard refuses. What h11 refuses never reaches the application: here it gets a problem, as every refusal does.

Hypercorn offers no place for this, so two of its classes are replaced by their children, in this process alone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import h11
import hypercorn.asyncio.run
import hypercorn.protocol
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol

from . import leftover, problems
from .problems import Problem

#: Seconds for which a client may take nothing of an answer that waits for it.
PATIENCE = 5.0


def install() -> None:
    """From now on Hypercorn's connections in this process are these."""
    hypercorn.protocol.H11Protocol = Http1  # type: ignore[attr-defined]
    hypercorn.asyncio.run.TCPServer = Connection  # type: ignore[attr-defined]


class Http1(H11Protocol):
    """Hypercorn's HTTP/1.1 without the ways out of it."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Neither an upgrade to HTTP/2 nor HTTP/2 from the start."""

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        if len(headers) < len(request.headers):
            method, target, version = request.method, request.target, request.http_version
            request = h11.Request(method=method, target=target, headers=headers, http_version=version)
        await super()._create_stream(request)

    async def _send_error_response(self, status_code: int) -> None:
        problem = _refusal(status_code)
        body = problems.document(problem)
        headers = [
            (b"content-type", problems.MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=problem.status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class Connection(TCPServer):
    """Hypercorn's connection, which ends when the client takes nothing of what is written, ends so that the client can
    read what was written last, and ends when the client has closed it: Hypercorn would first wait for a next request.
    """

    async def run(self) -> None:
        self._reading = asyncio.current_task()
        await super().run()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event)
            return
        if isinstance(event, Closed) and asyncio.current_task() is self._reading:
            await self._linger()
        if isinstance(event, Updated) and self.reader.at_eof():
            event = Updated(idle=False)  # no next request can come: nothing waits for one
        await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()

    async def _write(self, event: RawData) -> None:
        async with self.send_lock:
            try:
                self.writer.write(event.data)
                await self._taken()
            except (ConnectionError, RuntimeError):
                await self.protocol.handle(Closed())

    async def _taken(self) -> None:
        """Returns when the client has taken most of it. Raises ConnectionError when it takes nothing for too long."""
        transport = self.writer.transport
        before = transport.get_write_buffer_size() + 1
        while (left := transport.get_write_buffer_size()) < before:
            before = left
            try:
                async with asyncio.timeout(PATIENCE):
                    await self.writer.drain()
                return
            except TimeoutError:
                continue
        transport.abort()
        raise ConnectionAbortedError("the client takes nothing of the answer")

    async def _linger(self) -> None:
        """Read what still comes, within bounds: a socket that is closed with something unread resets the connection,
        and the client may lose the refusal that it was sent (RFC 9112, section 9.6).
        """
        with suppress(TimeoutError, OSError, RuntimeError):
            self.writer.write_eof()
            async with asyncio.timeout(leftover.PATIENCE):
                size = 0
                while size < leftover.MAX_BYTES and (piece := await self.reader.read(65536)):
                    size += len(piece)


def _refusal(status: int) -> Problem:
    """h11 also knows 501, for a transfer coding it does not know; but a 5xx would say that the fault is ours."""
    if status == 431:
        return Problem(431, "headers-too-large", "the request's headers are too large")
    return Problem(400, "malformed-request", "this is not HTTP/1.1, or its framing is broken")
