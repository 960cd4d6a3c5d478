"""Telling systemd: READY, STOPPING, and the watchdog's keep-alive (sd_notify(3)).

The keep-alive is sent by the loop itself: a supervisor that is stopped, or stuck in a call, does not send it, and
systemd then kills it; its workers die with it and the next start settles what they held.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress


class Notify:
    """The service manager's socket; without one every call does nothing. `watchdog` is its limit in seconds."""

    def __init__(self, address: str | None, watchdog: float | None) -> None:
        self._address = _abstract(address) if address else None
        self._every = watchdog / 3 if watchdog else None
        self._feed_at = 0.0
        self._told: set[str] = set()

    def once(self, state: str) -> None:
        """Send this state, such as READY=1, unless it was sent before."""
        if state not in self._told:
            self._told.add(state)
            self.send(state)

    def alive(self) -> None:
        """Feed the watchdog when it is time."""
        now = time.monotonic()
        if self._every is not None and now >= self._feed_at:
            self._feed_at = now + self._every
            self.send("WATCHDOG=1")

    @property
    def due(self) -> list[float]:
        """When (time.monotonic) the watchdog wants to be fed."""
        return [self._feed_at] if self._every is not None else []

    def send(self, state: str) -> None:
        """Send a state. A manager that does not listen is not our trouble."""
        if self._address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
            out.sendto(state.encode(), self._address)


def _abstract(address: str) -> str:
    """An address that begins with @ names a socket outside the file system."""
    return "\0" + address[1:] if address.startswith("@") else address
