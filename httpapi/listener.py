"""The socket that new connections come from, when no descriptor is left for them.

asyncio then takes the socket out of its loop for a second, but first calls accept as often again as its backlog is
long, and for each time notes to come back: a thousand tracebacks a second, and no time for those who are connected.
So the first failure is told once, and until asyncio comes back there is nothing to accept.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from asyncio.constants import ACCEPT_RETRY_DELAY
from typing import Any

from hypercorn.config import Config, Sockets

from ..runtime.events import emit

_NOTHING_LEFT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener(socket.socket):
    """A listening socket that gives asyncio one failure at a time."""

    _again = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises OSError; BlockingIOError also shortly after a failure for want of descriptors."""
        if time.monotonic() < self._again:
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            if error.errno in _NOTHING_LEFT:
                self._again = time.monotonic() + ACCEPT_RETRY_DELAY / 2
            raise


class OneSocket(Config):
    """Hypercorn's configuration for a socket that listens already."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._listener = Listener(fileno=sock.detach())
        self._listener.setblocking(False)

    def create_sockets(self) -> Sockets:
        """The one socket, without TLS."""
        return Sockets([], [self._listener], [])


def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's exception handler: want of descriptors is one line; all else is a bug, with its traceback."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _NOTHING_LEFT:
        emit("no descriptor is left; new connections wait", error=str(error))
    else:
        loop.default_exception_handler(context)
