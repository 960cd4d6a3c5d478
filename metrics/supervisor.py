"""What the supervisor counts, and what it says about itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..runtime.facts import Answered, Exited, LeaseLost, Missed, Recovered, Renewed, Swept
from . import catalogue as c
from . import cells
from .catalogue import EXIT_CAUSES, OTHER
from .memory import MetricsMemory
from .tally import Addition, Tally

#: Seconds for which the loop waits to give a new name its place: next to nothing.
PATIENCE = 0.02
#: How `deadsure_database_up` stands in its cell; 0: nobody has asked yet.
DOWN, UP = 1, 2


class SupervisorCounter:
    """The counter of the supervisor. Its page, like all others, dies with it."""

    def __init__(self, memory: MetricsMemory) -> None:
        self._page = memory.supervisor
        self._tally = Tally(memory)
        memory.kinds.patience = memory.providers.patience = PATIENCE
        self._hear: dict[type, Callable[[Any], Addition | None]] = {
            Missed: lambda fact: self._tally.new().missed(fact),
            Recovered: self._recovered,
            Exited: self._exited,
            Renewed: lambda fact: self._tally.new().one(c.LEASE_RENEWALS, fact.outcome),
            LeaseLost: lambda fact: self._tally.new().one(c.LEASES_LOST),
            Swept: lambda fact: self._tally.new().one(c.SWEPT, n=fact.incarnations),
            Answered: self._answered,
        }
        self._page.set(cells.of_pool(c.START_TIME), time.time_ns())

    def __call__(self, fact: tuple[object, ...]) -> None:
        """Count a fact."""
        hear = self._hear.get(type(fact))
        addition = hear(fact) if hear is not None else None
        for index, n in addition.changes.items() if addition is not None else ():
            self._page.add(index, n)

    def round(self, seconds: float, unsettled: int, dropped: int) -> None:
        """A round of the loop is over: how long it took, deaths that are not settled, lines dropped so far."""
        for index, n in self._tally.new().seconds(c.ROUND, seconds).changes.items():
            self._page.add(index, n)
        self._page.set(cells.of_pool(c.DEATHS_UNSETTLED), unsettled)
        self._page.set(cells.of_pool(c.LINES_DROPPED), dropped)
        self._page.set(cells.of_pool(c.ROUND_AGE), time.monotonic_ns())

    def _recovered(self, fact: Recovered) -> Addition:
        add = self._tally.new()
        for task in fact.tasks:
            add.one(c.RECOVERIES, fact.proof).seconds(c.RECOVERY, fact.seconds, fact.proof)
            add.became(task.kind, task.state, fact.cause)
        return add

    def _exited(self, fact: Exited) -> Addition:
        cause = fact.cause if fact.cause in EXIT_CAUSES else OTHER
        add = self._tally.new().one(c.WORKER_EXITS, cause)
        return add.one(c.START_FAILURES) if fact.failed_to_start else add

    def _answered(self, fact: Answered) -> None:
        self._page.set(cells.of_pool(c.DATABASE_UP), UP if fact.up else DOWN)
