"""Figures read from the database, on their way from the supervisor to whoever scrapes.

Each part stands in shared memory with the time at which it was read. A part that is too old is withheld: an old number
would be a lie, and a zero a worse one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from .catalogue import OTHER
from .memory import MetricsMemory

#: Seconds after which a part is withheld.
FRESH = 30.0
#: Rows of one part that keep their own names; the others are added up as `other`.
MOST_ROWS = 200


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One figure: its label values, how many, and the age of the oldest in seconds, where there is one."""

    labels: tuple[str, ...]
    count: int
    oldest: float | None = None


class Part(msgspec.Struct, frozen=True):
    """What was read at one time (nanoseconds of CLOCK_BOOTTIME, which goes on while the machine sleeps)."""

    at: int
    rows: tuple[Row, ...]

    @property
    def age(self) -> float:
        """Seconds since then."""
        return max(0.0, (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self.at) / 1e9)


_decoder = msgspec.json.Decoder(Part)


def write(memory: MetricsMemory, part: str, rows: list[Row]) -> None:
    """Show what was read just now. For the supervisor."""
    if len(rows) > MOST_ROWS:
        rows = _bounded(rows)
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    memory.figures[part].write(msgspec.json.encode(Part(at, tuple(rows))))


def read(memory: MetricsMemory) -> Mapping[str, Part]:
    """Every part that was ever read, however old."""
    raw = {part: blob.read() for part, blob in memory.figures.items()}
    return {part: _decoder.decode(data) for part, data in raw.items() if data is not None}


def _bounded(rows: list[Row]) -> list[Row]:
    """The first ones, and the others together, by all labels but the first."""
    kept, others = rows[:MOST_ROWS], dict[tuple[str, ...], Row]()
    for row in rows[MOST_ROWS:]:
        labels = (OTHER, *row.labels[1:])
        before = others.get(labels, Row(labels, 0))
        ages = [age for age in (before.oldest, row.oldest) if age is not None]
        others[labels] = Row(labels, before.count + row.count, max(ages, default=None))
    return kept + list(others.values())
