"""A lane to the database: at most one connection, used by one thread at a time, within a deadline.

Everything that goes through a lane can be repeated (reads; a cancel; a submit, which has its id and key), so a lane
sends it again on a new connection while the deadline allows. It still says at the end what is known: InDoubt stays
InDoubt when no later answer settled it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..runtime import db, events
from ..runtime.errors import DatabaseUnavailable, InDoubt, NotReplicated, StatementRefused
from ..runtime.facts import Answered
from ..runtime.store.sessions import Sessions

T = TypeVar("T")

#: With less than this left nothing is begun: it could not be answered any more.
WORTH_TRYING = 0.05
#: Seconds between two attempts to settle a doubt while the database is away, or something there is in the way.
PAUSE = 0.05
#: What passes by itself: lock not available, canceled by a timeout, deadlock, serialization failure.
_PASSING = ("55P03", "57014", "40P01", "40001")


class TooLate(DatabaseUnavailable):
    """The request's time was spent before anything was sent; that says nothing about the database."""


class Lane:
    """Opens its connection at the first use, and again after it was lost."""

    def __init__(self, settings: db.Settings, name: str) -> None:
        self._settings = settings
        self._sessions = Sessions(name)

    def do(self, work: Callable[[db.Connection], T], deadline: float) -> T:
        """Carry out repeatable `work` before `deadline` (time.monotonic). Blocks; for one thread at a time.

        Raises StatementRefused or DatabaseUnavailable (surely not done), or InDoubt.
        """
        doubt: InDoubt | None = None
        while True:
            reused = self._sessions.present is not None
            try:
                answer = work(self._open(deadline))
            except InDoubt as error:
                doubt = error
                events.note(Answered(False))
                events.emit("a statement is in doubt", error=str(error))
                if isinstance(error, NotReplicated) or _spent(deadline):
                    raise
            except (DatabaseUnavailable, StatementRefused) as error:
                if not isinstance(error, TooLate):
                    events.note(Answered(isinstance(error, StatementRefused)))
                lost = reused and self._sessions.present is None
                if doubt is not None:
                    # That this one was not done says nothing about the one before.
                    if not _passes(error) or _spent(deadline - PAUSE):
                        raise doubt from error
                    time.sleep(PAUSE)
                elif isinstance(error, StatementRefused) or not lost or _spent(deadline):
                    raise
            else:
                events.note(Answered(True))
                if doubt is not None:
                    events.emit("a lost answer was settled by repeating")
                return answer

    def _open(self, deadline: float) -> db.Connection:
        left = deadline - time.monotonic()
        if _spent(deadline):
            raise TooLate("the request's time was spent before the database answered; nothing was done")
        bounded = replace(self._settings, connect_timeout=min(self._settings.connect_timeout, left))
        return self._sessions.take(bounded, lambda: deadline - time.monotonic())


def _spent(deadline: float) -> bool:
    """Whether too little time is left to begin anything."""
    return deadline - time.monotonic() < WORTH_TRYING


def _passes(error: DatabaseUnavailable | StatementRefused) -> bool:
    """Whether the same may be answered when it is tried again."""
    return isinstance(error, DatabaseUnavailable) or error.sqlstate in _PASSING
