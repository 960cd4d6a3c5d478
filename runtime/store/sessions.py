"""A session in the place of one that was given up, and what becomes of the one before.

A statement that was given up at its deadline goes on in the server. Mostly it ends there soon, by statement_timeout.
Not so a COMMIT that waits for its synchronous standby: nothing bounds that wait. If every further write opened a new
session and left it hanging too, nobody could connect any more after a minute. So whoever gave up a session remembers
it, ends it from the next one, and begins nothing while too many of his commits wait for the standby.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import db, sql
from ..db import Backend, Connection, Settings
from ..errors import DatabaseUnavailable, InDoubt

_IDENTITY = sql.statement("backend_identity")
_LEFT_BEHIND = sql.statement("left_behind")

#: How many commits of one owner may wait for the standby before it begins nothing more.
MOST = 2


class Sessions:
    """One owner's sessions with the primary: the present one, and those that it gave up in the middle of something."""

    def __init__(self, name: str, begin: Callable[[Connection], None] | None = None) -> None:
        """`name` is shown in pg_stat_activity; `begin` is what each session begins with."""
        self._name = name
        self._begin = begin
        self._present: Connection | None = None
        self._left: list[Backend] = []

    @property
    def present(self) -> Connection | None:
        """The open session; None when there is none, or it was lost."""
        return self._present if self._present is not None and self._present.usable else None

    @property
    def backend(self) -> Backend | None:
        """The server process of the present session, or of the one that was lost last."""
        return self._present.backend if self._present is not None else None

    def take(self, settings: Settings, seconds_left: Callable[[], float]) -> Connection:
        """The present session, or a new one, for work that ends within so many seconds.

        Raises DatabaseUnavailable or StatementRefused: nothing was begun.
        """
        try:
            connection = self.present or self._open(settings, seconds_left)
            connection.wait_at_most(seconds_left())
            if self._left:
                self._look_back(connection)
        except InDoubt as error:
            raise DatabaseUnavailable(f"the connection was lost before anything was sent: {error}") from error
        return connection

    def close(self) -> None:
        """End the present session in good order."""
        if self._present is not None:
            self._present.close()
            self._present = None

    def _open(self, settings: Settings, seconds_left: Callable[[], float]) -> Connection:
        if self._present is not None and self._present.backend is not None:
            self._left.append(self._present.backend)
        self._present = None
        connection = db.connect(settings, self._name)
        connection.wait_at_most(seconds_left())
        connection.identify(_IDENTITY)
        if self._begin is not None:
            self._begin(connection)
        self._present = connection
        return connection

    def _look_back(self, connection: Connection) -> None:
        pids, starts = [backend.pid for backend in self._left], [backend.started for backend in self._left]
        self._left = [Backend(*row) for row in connection.run(_LEFT_BEHIND, pids=pids, starts=starts)]
        if len(self._left) >= MOST:
            raise DatabaseUnavailable(
                "commits wait for a synchronous standby that does not answer; nothing more was begun"
            )
