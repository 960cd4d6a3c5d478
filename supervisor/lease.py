"""The lease: until when this incarnation is trusted.

Only the database's clock decides whether a lease has expired. The local clock may stop us sooner, never later: the
trust window is counted from the START of the last renewal that succeeded, on CLOCK_BOOTTIME, which goes on while the
machine sleeps, less a margin. There is one lease per incarnation and one renewal per `every` seconds, however many
tasks run; a handler that holds the interpreter cannot lose it, because it is renewed by the supervisor.

A renewal shows a random token: the last one confirmed, or the one of a renewal whose answer was lost. So one lost
answer kills nobody, and a cloned machine, which knows neither, is refused.
"""

from __future__ import annotations

import time
from uuid import UUID

from ..runtime.db import Connection
from ..runtime.ids import new_token
from ..runtime.store import pool

NANOSECONDS = 1_000_000_000


def boottime() -> int:
    """Nanoseconds of CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Lease:
    """The lease of one incarnation. `seconds` is its length."""

    def __init__(self, incarnation: UUID, seconds: float) -> None:
        self.incarnation = incarnation
        self.token = new_token()
        self.trusted_until = 0
        #: Whether another incarnation was alive at the last renewal.
        self.others = False
        self._seconds = seconds
        self._in_doubt: list[int] = []

    @property
    def margin(self) -> float:
        """Seconds that are given away at the end of the window: for killing workers before others may sweep."""
        return self._seconds * 0.2

    def registered(self, started: int) -> None:
        """The incarnation's row is committed with a full lease; `started` is boottime before it was sent."""
        self._extend(started)

    def renew(self, connection: Connection) -> bool:
        """One renewal. False: refused, the incarnation has ended. Raises StoreError when there was no answer."""
        started = boottime()
        following = new_token()
        tokens = [self.token, *self._in_doubt]
        self._in_doubt.append(following)
        renewal = pool.renew(connection, self.incarnation, tokens, following, self._seconds)
        if renewal is None:
            return False
        self.token, self._in_doubt = following, []
        self.others = renewal.others
        self._extend(started)
        return True

    @property
    def trusted(self) -> bool:
        return boottime() < self.trusted_until

    def _extend(self, started: int) -> None:
        self.trusted_until = started + int((self._seconds - self.margin) * NANOSECONDS)
