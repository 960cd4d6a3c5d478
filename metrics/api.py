"""What an api child counts: its answers, its waits for the database, cancels and decisions."""

from __future__ import annotations

import threading
from collections import deque
from uuid import UUID

from ..runtime.facts import Answered, Canceled, Resolved
from . import catalogue as c
from . import cells
from .memory import MetricsMemory
from .supervisor import DOWN, UP
from .tally import Addition, Tally


class ApiCounter:
    """The counter of the api child of this number (from 0). Facts may come from any of its threads."""

    def __init__(self, memory: MetricsMemory, number: int, connections: int) -> None:
        self._page = memory.apis[number]
        self._memory = memory
        self._tally = Tally(memory)
        self._lock = threading.Lock()
        self._counted: deque[UUID | None] = deque(maxlen=1000)
        self._page.take_over()
        self._page.set(cells.of_pool(c.DB_POOL_SIZE), connections)
        self.in_use(0)
        assert self._page.answers is not None
        self._answers = self._page.answers

    def __call__(self, fact: tuple[object, ...]) -> None:
        """Count a fact."""
        if isinstance(fact, Answered):
            self._page.set(cells.of_pool(c.DATABASE_UP), UP if fact.up else DOWN)
        elif isinstance(fact, Canceled):
            self._once(fact.request, self._tally.new().became(fact.kind, fact.state, "unsettled_attempt"))
        elif isinstance(fact, Resolved):
            add = self._tally.new().one(c.RESOLUTIONS, fact.state)
            self._once(fact.decision, add.became(fact.kind, fact.state, None))

    def serve(self, routes: tuple[str, ...]) -> None:
        """These are the routes whose answers are counted, in this order in every process."""
        for page in self._memory.apis:
            if page.answers is not None:
                page.answers.take_over(routes)

    def answered(self, route: str | None, method: str, code: int, seconds: float) -> None:
        """An answer has been given; `route` None: no route of ours, `code` 0: the client has gone before it."""
        self._answers.count(route, method, code, seconds)

    def waited(self, seconds: float) -> None:
        """A request has got a connection, or has given up waiting for one."""
        with self._lock:
            for index, n in self._tally.new().seconds(c.DB_POOL_WAIT, seconds).changes.items():
                self._page.add(index, n)

    def timed_out(self) -> None:
        """A request got no connection in its time."""
        with self._lock:
            self._page.add(cells.of_pool(c.DB_POOL_TIMEOUTS))

    def in_use(self, connections: int) -> None:
        """So many connections are in use now."""
        self._page.set(cells.of_pool(c.DB_POOL_IN_USE), connections)

    def _once(self, act: UUID | None, addition: Addition) -> None:
        """Count an act, unless it was told before: after a lost answer it is carried out, and told, again."""
        with self._lock:
            if act is None or act not in self._counted:
                self._page.ledger.post(addition.changes)
            self._counted.append(act)
