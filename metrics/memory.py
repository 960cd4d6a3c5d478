"""The metrics of one pool in one anonymous shared mapping, made before the first fork.

    names       kinds and providers, in the order in which they were first met
    figures     what the supervisor has read from the database, in parts
    pages       one for the supervisor, one for each seat, one for each api child: cells and a ledger; an api child's
                page also has a table of its answers by route, method and code

A page has one writer, the process that sits there. What a dead worker counted stays in its seat's page, and its
successor counts on: so a counter never goes back while the supervisor lives.
"""

from __future__ import annotations

import mmap
import os

from . import cells
from .answers import Answers
from .catalogue import MOST_KINDS, MOST_PROVIDERS, PARTS
from .journal import FULL, Blob, Ledger
from .names import Names

#: Bytes of a page's ledger: several hundred cells that change at once, and the names of several hundred tasks.
_LEDGER = 16 * 1024
#: Bytes of one part of the figures.
_FIGURES = 32 * 1024


class Page:
    """What one process counts. Call `take_over` in the process that is to write it."""

    def __init__(self, memory: memoryview, offset: int, answers: bool) -> None:
        self.cells: memoryview[int] = memory[offset : offset + cells.SIZE * 8].cast("Q")
        at = offset + cells.SIZE * 8
        self.ledger = Ledger(self.cells, Blob(memory, at, _LEDGER))
        self.answers = Answers(memory, at + Blob.size(_LEDGER)) if answers else None

    @staticmethod
    def size(answers: bool) -> int:
        return cells.SIZE * 8 + Blob.size(_LEDGER) + (Answers.SIZE if answers else 0)

    def take_over(self) -> bytes:
        """Go on where the last writer was, whatever it was doing when it ended. Returns its ledger's state."""
        return self.ledger.replay()

    def add(self, index: int, n: int = 1) -> None:
        """Count. For cells that change by themselves; those that change together go through the ledger."""
        self.cells[index] = min(self.cells[index] + n, FULL)

    def set(self, index: int, value: int) -> None:
        self.cells[index] = value


class MetricsMemory:
    """The whole mapping. `lock` is a descriptor that every process which may meet a new name must keep."""

    def __init__(self, seats: int, apis: int) -> None:
        sizes = [
            Names.size(MOST_KINDS),
            Names.size(MOST_PROVIDERS),
            *[Blob.size(_FIGURES)] * len(PARTS),
            *[Page.size(False)] * (1 + seats),
            *[Page.size(True)] * apis,
        ]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self.lock = os.memfd_create("deadsure-metrics")
        memory = memoryview(mmap.mmap(-1, sum(sizes)))
        self.kinds = Names(memory, starts[0], MOST_KINDS, self.lock, 0)
        self.providers = Names(memory, starts[1], MOST_PROVIDERS, self.lock, 1)
        places = iter(starts[2:])
        self.figures = {part: Blob(memory, next(places), _FIGURES) for part in PARTS}
        self.supervisor = Page(memory, next(places), False)
        self.seats = tuple(Page(memory, next(places), False) for _ in range(seats))
        self.apis = tuple(Page(memory, next(places), True) for _ in range(apis))

    @property
    def pages(self) -> tuple[Page, ...]:
        return (self.supervisor, *self.seats, *self.apis)
