"""Sockets with one deadline for a whole exchange.

A socket's own timeout starts anew with every read, so a server (or whatever stands between) that trickles its answer
could hold a statement for ever. Here the caller sets a moment, and every read and write until then gets what is left.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from typing import Any

#: Seconds a whole exchange may take beyond the server's own statement_timeout, so that the server's answer comes first.
SOCKET_MARGIN = 1.0


class _Timed:
    """What both kinds of sockets have in common. The driver's buffered file calls only `recv_into` and `send`."""

    #: time.monotonic() at which the exchange must be over.
    until = math.inf

    def recv_into(self, *arguments: Any) -> int:
        self._arm()
        received: int = super().recv_into(*arguments)  # type: ignore[misc]
        return received

    def send(self, *arguments: Any) -> int:
        self._arm()
        sent: int = super().send(*arguments)  # type: ignore[misc]
        return sent

    def _arm(self) -> None:
        if self.until == math.inf:
            return
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the statement's time was spent")
        self.settimeout(left)  # type: ignore[attr-defined]


class TimedSocket(_Timed, socket.socket):
    """A plain one."""


class TimedTlsSocket(_Timed, ssl.SSLSocket):
    """One with TLS."""


def timed(raw: socket.socket) -> TimedSocket:
    """The same descriptor as a TimedSocket; `raw` is empty afterwards."""
    return TimedSocket(raw.family, raw.type, raw.proto, raw.detach())


def timed_tls(context: ssl.SSLContext, until: float) -> ssl.SSLContext:
    """Let `context` make timed sockets. The first exchanges, in which the session is started, end at `until` too."""
    context.sslsocket_class = type("StartingTlsSocket", (TimedTlsSocket,), {"until": until})
    return context
