"""The supervisor's one database connection: opened when needed, given up at once, tried again with back-off."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ..runtime import db, events
from ..runtime.db import Connection
from ..runtime.errors import DatabaseUnavailable, InDoubt, StatementRefused, StoreError
from ..runtime.facts import Answered
from ..runtime.store import pool
from ..runtime.store.sessions import Sessions
from .resolver import Resolver

T = TypeVar("T")
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


class Link:
    """Lends the connection to short, bounded calls. While the database is away it fails fast between attempts."""

    def __init__(self, settings: db.Settings, name: str, resolver: Resolver) -> None:
        self._settings = settings
        self._resolver = resolver
        self._sessions = Sessions(name, self._listen)
        self._pause = 0.0
        self._not_before = 0.0
        #: CLOCK_BOOTTIME (nanoseconds) at which this incarnation must have its hands free to kill its workers.
        self.trusted_until = 0
        #: Is told who has announced something, as it came in with an answer.
        self.heard: Callable[[Sequence[str]], None] = lambda _: None

    def call(self, work: Callable[[Connection], T]) -> T:
        """Run `work`. Raises StoreError: DatabaseUnavailable also when the last attempt was too short ago."""
        try:
            connection = self._connected()
            result = work(connection)
        except (DatabaseUnavailable, InDoubt) as error:
            events.note(Answered(False))
            self._lost(error)
            raise
        events.note(Answered(True))
        self._recovered()
        if senders := connection.heard():
            self.heard(senders)
        return result

    def try_call(self, work: Callable[[Connection], T]) -> T | None:
        """Run `work`; None when the database did not answer. For what will simply be asked again."""
        try:
            return self.call(work)
        except StatementRefused as error:
            events.emit("a statement was refused", error=str(error))
        except StoreError:  # `call` has told
            return None
        return None

    @property
    def fileno(self) -> int | None:
        """The descriptor of the open session, readable when something came in unasked; None without one."""
        return self._sessions.present.fileno() if self._sessions.present is not None else None

    @property
    def retry_at(self) -> float:
        """When (time.monotonic) the next attempt may be made."""
        return self._not_before

    def close(self) -> None:
        self._sessions.close()

    def _connected(self) -> Connection:
        dsn = self._settings.dsn
        if self._sessions.present is None:
            if time.monotonic() < self._not_before:
                raise DatabaseUnavailable("the database was away a moment ago; nothing was sent")
            resolved = self._resolver.resolved()
            if resolved is None:
                raise DatabaseUnavailable("the database's host name is not resolved yet; nothing was sent")
            dsn = resolved
        patience = min(self._settings.connect_timeout, self._seconds_left())
        return self._sessions.take(replace(self._settings, dsn=dsn, connect_timeout=patience), self._seconds_left)

    def _listen(self, connection: Connection) -> None:
        """For each new session. What was announced while there was none was not heard, so it counts as announced."""
        with suppress(StatementRefused):
            pool.listen(connection)
        self.heard(("",))

    def _seconds_left(self) -> float:
        """How long a call may hang: never beyond the end of the trust window, while there is one."""
        left = (self.trusted_until - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9
        return max(0.1, left) if left > 0 else float("inf")

    def _lost(self, error: StoreError) -> None:
        now = time.monotonic()
        if now < self._not_before:
            return
        self._resolver.distrust()
        if self._pause == 0.0:
            events.emit("the database does not answer", error=str(error))
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        self._not_before = now + self._pause

    def _recovered(self) -> None:
        if self._pause:
            events.emit("the database answers again")
        self._pause = 0.0
        self._not_before = 0.0
