"""Reading the database's figures now and then, without ever holding up the loop.

One part at a time, and each statement ends after a fraction of a second. A part that could not be read is left as it
is and grows old; whoever scrapes sees no number then, instead of a wrong one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from ..metrics import catalogue, figures
from ..metrics.figures import Row
from ..metrics.memory import MetricsMemory
from ..runtime import events
from ..runtime.db import Connection
from ..runtime.errors import StatementRefused, StoreError
from ..runtime.store import figures as store
from ..runtime.store.figures import Figure
from .link import Link

#: Seconds between two readings of one part, and after one that took too long.
EVERY = 5.0
AFTER_TROUBLE = 15.0
#: Seconds that a statement may take, and how many times as long as it took it is then left alone.
LONGEST = 0.25
_REST = 50


class Figures:
    """The parts, and when each is to be read again."""

    def __init__(self, queues: Sequence[str], memory: MetricsMemory) -> None:
        self._queues = list(queues)
        self._memory = memory
        self._read: dict[str, Callable[[Connection], list[Row]]] = {
            "queued": self._queued,
            "held": self._held,
            "unknown": self._unknown,
            "server": self._server,
        }
        self._due = dict.fromkeys(self._read, 0.0)
        self._told: set[str] = set()

    def read_if_due(self, link: Link) -> None:
        """Read the part whose time has come, if any."""
        part = min(self._due, key=lambda name: self._due[name])
        began = time.monotonic()
        if began < self._due[part]:
            return
        try:
            figures.write(self._memory, part, link.call(self._read[part]))
            self._told.discard(part)
            self._due[part] = began + max(EVERY, _REST * (time.monotonic() - began))
        except StoreError as error:
            self._due[part] = began + (AFTER_TROUBLE if isinstance(error, StatementRefused) else EVERY)
            if isinstance(error, StatementRefused) and part not in self._told:
                self._told.add(part)
                events.emit("figures could not be read", part=part, error=str(error))

    @property
    def due(self) -> float:
        """When (time.monotonic) the next part is to be read."""
        return min(self._due.values())

    def _queued(self, connection: Connection) -> list[Row]:
        return self._of_queues(store.queued(connection, self._queues, LONGEST), "queued", "scheduled")

    def _held(self, connection: Connection) -> list[Row]:
        return self._of_queues(store.held(connection, self._queues, LONGEST), "running", "unknown")

    def _of_queues(self, found: list[Figure], *states: str) -> list[Row]:
        known = [(queue, state) for queue in self._queues for state in states]
        return _with_zeros(found, known, never_old={"scheduled"})

    def _unknown(self, connection: Connection) -> list[Row]:
        kinds = self._memory.kinds
        found: dict[tuple[str, str], Figure] = {}
        for figure in store.unknown(connection, LONGEST):
            kind, needs = figure.labels
            labels = (kind if kinds.index(kind) < catalogue.MOST_KINDS else catalogue.OTHER, needs)
            before = found.get(labels, Figure(labels, 0, 0.0))
            oldest = max(before.oldest or 0.0, figure.oldest or 0.0)
            found[labels] = Figure(labels, before.number + figure.number, oldest)
        known = [(kind, needs) for kind in kinds.all() for needs in catalogue.NEEDS]
        return _with_zeros(list(found.values()), known)

    def _server(self, connection: Connection) -> list[Row]:
        dead = store.dead_tuples(connection, catalogue.TABLES, LONGEST)
        oldest = store.oldest_transaction(connection, LONGEST)
        return [Row((), 0, oldest), *(Row(figure.labels, figure.number) for figure in dead)]


def _with_zeros(found: list[Figure], known: list[tuple[str, str]], never_old: Collection[str] = ()) -> list[Row]:
    """A row for each that is known, with 0 where nothing was found, and then those that were found beside them."""
    by_labels = {figure.labels: figure for figure in found}
    rows = []
    for labels in dict.fromkeys([*known, *by_labels]):
        figure = by_labels.get(labels)
        oldest = None if labels[1] in never_old else 0.0 if figure is None else figure.oldest
        rows.append(Row(labels, 0 if figure is None else figure.number, oldest))
    return rows
