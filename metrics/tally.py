"""From facts to cells: what each of them adds, whoever counts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

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

    def run(self, kind: str, seconds: float) -> Iterable[tuple[int, int]]:
        """A handler that came to its end: what that adds to which cells, each by itself."""
        return cells.observed(c.TASK_RUN, cells.of_kind(c.TASK_RUN, self._memory.kinds.index(kind)), seconds)

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

    def finishes(self, ended: Iterable[Ended], *, read: bool) -> Addition:
        """A worker's finishes. `read`: nobody has heard their answer."""
        for one, n in Counter(ended).items():
            if one.state is None:
                self.one(c.FINISHES, "refused", n=n)
            else:
                self.one(c.FINISHES, "settled_by_reading" if read else "committed", n=n)
                self.became(one.kind, one.state, one.cause, n)
        return self

    def claims(self, won: Sequence[tuple[str, float | None]]) -> Addition:
        """Tasks that were won: their kinds, and how long they had waited, where that is known."""
        if won:
            self.one(c.CLAIMS, "won", n=len(won))
        for kind, waited in won:
            if waited is not None:
                self._observe(c.TASK_WAIT, cells.of_kind(c.TASK_WAIT, self._memory.kinds.index(kind)), waited)
        return self

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
        self.finishes(missed.ended, read=True).claims(missed.won)
        return self if missed.reconciled is None else self.lookup(missed.reconciled)

    def became(self, kind: str, state: State, cause: str | None, n: int = 1) -> Addition:
        """So many tasks that are in this state now, by whatever way."""
        index = self._memory.kinds.index(kind)
        if state in TERMINAL:
            self._add(cells.of_kind(c.FINISHED, index, state), n)
        elif state is State.UNKNOWN and cause in c.UNKNOWN_CAUSES:
            self._add(cells.of_kind(c.UNKNOWN, index, cause), n)
        return self

    def _observe(self, metric: Metric, first: int, seconds: float) -> Addition:
        for index, n in cells.observed(metric, first, seconds):
            self._add(index, n)
        return self

    def _add(self, index: int, n: int = 1) -> Addition:
        self.changes[index] = self.changes.get(index, 0) + n
        return self
