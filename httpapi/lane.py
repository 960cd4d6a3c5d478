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

from ..runtime import db
from ..runtime.errors import DatabaseUnavailable, InDoubt, NotReplicated, StatementRefused

T = TypeVar("T")

#: With less than this left nothing is begun: it could not be answered any more.
WORTH_TRYING = 0.05


class Lane:
    """Opens its connection at the first use, and again after it was lost."""

    def __init__(self, settings: db.Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._connection: db.Connection | None = None

    def do(self, work: Callable[[db.Connection], T], deadline: float) -> T:
        """Carry out repeatable `work` before `deadline` (time.monotonic). Blocks; for one thread at a time.

        Raises StatementRefused or DatabaseUnavailable (surely not done), or InDoubt.
        """
        doubt: InDoubt | None = None
        while True:
            reused = self._connection is not None and self._connection.usable
            try:
                return work(self._open(deadline))
            except InDoubt as error:
                doubt = error
                if isinstance(error, NotReplicated) or _spent(deadline):
                    raise
            except (DatabaseUnavailable, StatementRefused) as error:
                if doubt is not None:
                    # That this one was not done says nothing about the one before.
                    raise doubt from error
                if isinstance(error, StatementRefused) or not reused or _spent(deadline):
                    raise

    def _open(self, deadline: float) -> db.Connection:
        left = deadline - time.monotonic()
        if _spent(deadline):
            raise DatabaseUnavailable("the request's time was spent before the database answered; nothing was done")
        if self._connection is None or not self._connection.usable:
            bounded = replace(self._settings, connect_timeout=min(self._settings.connect_timeout, left))
            self._connection = db.connect(bounded, self._name)
        self._connection.wait_at_most(deadline - time.monotonic())
        return self._connection


def _spent(deadline: float) -> bool:
    """Whether too little time is left to begin anything."""
    return deadline - time.monotonic() < WORTH_TRYING
