"""From facts to cells: what each of them adds, whoever counts it."""

from __future__ import annotations

from collections.abc import Iterable

from ..runtime.facts import Ended, Missed, Reconciled
from ..runtime.states import TERMINAL, State
from . import catalogue as c
from . import cells
from .catalogue import Metric
from .memory import MetricsMemory


class Tally:
    """Knows the names; makes an `Addition` for each fact."""

    def __init__(self, memory: MetricsMemory) -> None:
        self._memory = memory

    def meet(self, kinds: Iterable[str], providers: Iterable[str]) -> None:
        """Give these names their places."""
        for kind in kinds:
            self._memory.kinds.index(kind)
        for provider in providers:
            self._memory.providers.index(provider)

    def new(self) -> Addition:
        return Addition(self._memory)


class Addition:
    """What is to be added, by cell. Its methods can be chained."""

    def __init__(self, memory: MetricsMemory) -> None:
        self._memory = memory
        self.changes: dict[int, int] = {}

    def one(self, metric: Metric, *values: str, n: int = 1) -> Addition:
        """To a series of the pool."""
        return self._add(cells.of_pool(metric, *values), n)

    def seconds(self, metric: Metric, seconds: float, *values: str) -> Addition:
        """To a histogram of the pool."""
        return self._observe(metric, cells.of_pool(metric, *values), seconds)

    def finish(self, ended: Ended, *, read: bool) -> Addition:
        """A worker's finish. `read`: nobody has heard its answer."""
        if ended.state is None:
            return self.one(c.FINISHES, "refused")
        self.one(c.FINISHES, "settled_by_reading" if read else "committed")
        return self.became(ended.kind, ended.state, ended.cause)

    def claim(self, kind: str, waited: float | None) -> Addition:
        """A task that was won, and how long it had waited, if that is known."""
        self.one(c.CLAIMS, "won")
        if waited is not None:
            self._observe(c.TASK_WAIT, cells.of_kind(c.TASK_WAIT, self._memory.kinds.index(kind)), waited)
        return self

    def run(self, kind: str, seconds: float) -> Addition:
        """A handler that came to its end."""
        return self._observe(c.TASK_RUN, cells.of_kind(c.TASK_RUN, self._memory.kinds.index(kind)), seconds)

    def call(self, provider: str, outcome: str) -> Addition:
        """A provider's call."""
        index = self._memory.providers.index(provider)
        if outcome == "receipt_mismatch":
            self._add(cells.of_provider(c.MISMATCHES, index))
        return self._add(cells.of_provider(c.EFFECT_CALLS, index, outcome))

    def lookup(self, done: Reconciled) -> Addition:
        """A lookup, and what it made of its task."""
        index = self._memory.providers.index(done.provider)
        if done.outcome == "mismatch":
            self._add(cells.of_provider(c.MISMATCHES, index))
        self._add(cells.of_provider(c.RECONCILES, index, done.outcome))
        return self if done.state is None else self.became(done.kind, done.state, None)

    def missed(self, missed: Missed) -> Addition:
        """What a dead worker had not counted."""
        for ended in missed.ended:
            self.finish(ended, read=True)
        for kind, waited in missed.won:
            self.claim(kind, waited)
        return self if missed.reconciled is None else self.lookup(missed.reconciled)

    def became(self, kind: str, state: State, cause: str | None) -> Addition:
        """A task that is in this state now, by whatever way."""
        index = self._memory.kinds.index(kind)
        if state in TERMINAL:
            self._add(cells.of_kind(c.FINISHED, index, state))
        elif state is State.UNKNOWN and cause in c.UNKNOWN_CAUSES:
            self._add(cells.of_kind(c.UNKNOWN, index, cause))
        return self

    def _observe(self, metric: Metric, first: int, seconds: float) -> Addition:
        for index, n in cells.observed(metric, first, seconds):
            self._add(index, n)
        return self

    def _add(self, index: int, n: int = 1) -> Addition:
        self.changes[index] = self.changes.get(index, 0) + n
        return self
