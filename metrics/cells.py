"""Which cell holds what: the same layout in every writer's page.

A cell is 8 bytes, written whole by one process and read by any. Counters of the pool come first, then a block for each
provider, then one for each kind; the last block of each is for all names beyond the bound. A histogram has a cell for
each bucket, one for what is beyond them, and one for the sum, in nanoseconds: whole numbers lose nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from . import catalogue as c
from .catalogue import MOST_KINDS, MOST_PROVIDERS, Metric

NANOSECONDS = 1_000_000_000
#: Seconds, a year: the longest that is observed.
LONGEST = 365 * 86_400.0


#: What is counted in cells, by what its series are named after. Labels `pool` and `process` are the page's own.
OF_POOL = (
    c.WORKER_EXITS,
    c.START_FAILURES,
    c.ROUND,
    c.LINES_DROPPED,
    c.CLAIMS,
    c.CONFLICTS,
    c.FINISHES,
    c.RECOVERIES,
    c.RECOVERY,
    c.LEASE_RENEWALS,
    c.LEASES_LOST,
    c.SWEPT,
    c.RESOLUTIONS,
)
OF_PROCESS = (c.DATABASE_UP, c.DB_POOL_SIZE, c.DB_POOL_IN_USE, c.DB_POOL_WAIT, c.DB_POOL_TIMEOUTS)
#: Written by the supervisor alone: points of time (nanoseconds), and a number.
OF_SUPERVISOR = (c.START_TIME, c.ROUND_AGE, c.DEATHS_UNSETTLED)
OF_PROVIDER = (c.EFFECT_CALLS, c.RECONCILES, c.MISMATCHES)
OF_KIND = (c.FINISHED, c.UNKNOWN, c.TASK_WAIT, c.TASK_RUN)


def width(metric: Metric) -> int:
    """How many cells one series of it takes."""
    return len(metric.buckets) + 2 if metric.type == "histogram" else 1


@dataclass(frozen=True)
class Block:
    """The cells of some metrics, from 0 on: where each of their series begins, by its closed label values."""

    metrics: tuple[Metric, ...]
    starts: dict[tuple[str, tuple[str, ...]], int]
    size: int

    @classmethod
    def of(cls, metrics: Iterable[Metric]) -> Block:
        chosen = tuple(metrics)
        starts: dict[tuple[str, tuple[str, ...]], int] = {}
        at = 0
        for metric in chosen:
            for values in product(*metric.values):
                starts[metric.name, values] = at
                at += width(metric)
        return cls(chosen, starts, at)

    def series(self, metric: Metric) -> Iterator[tuple[tuple[str, ...], int]]:
        """Every series of a metric: its closed label values, and its first cell."""
        for values in product(*metric.values):
            yield values, self.starts[metric.name, values]


_POOL = Block.of((*OF_POOL, *OF_PROCESS, *OF_SUPERVISOR))
_PROVIDER = Block.of(OF_PROVIDER)
_KIND = Block.of(OF_KIND)
_PROVIDERS_AT = _POOL.size
_KINDS_AT = _PROVIDERS_AT + (MOST_PROVIDERS + 1) * _PROVIDER.size
#: Cells of a page.
SIZE = _KINDS_AT + (MOST_KINDS + 1) * _KIND.size

BLOCKS = {"pool": _POOL, "provider": _PROVIDER, "kind": _KIND}


def of_pool(metric: Metric, *values: str) -> int:
    """The first cell of a series without a name from a table. Raises KeyError for no such series, as the others do."""
    return _POOL.starts[metric.name, values]


def provider_at(provider: int) -> int:
    """Where the provider's block begins."""
    return _PROVIDERS_AT + provider * _PROVIDER.size


def kind_at(kind: int) -> int:
    """Where the kind's block begins."""
    return _KINDS_AT + kind * _KIND.size


def of_provider(metric: Metric, provider: int, *values: str) -> int:
    return provider_at(provider) + _PROVIDER.starts[metric.name, values]


def of_kind(metric: Metric, kind: int, *values: str) -> int:
    return kind_at(kind) + _KIND.starts[metric.name, values]


def bucket(metric: Metric, seconds: float) -> int:
    """Which of a histogram's cells counts this value: a bucket holds its own upper bound."""
    return bisect_left(metric.buckets, seconds)


def observed(metric: Metric, first: int, seconds: float) -> tuple[tuple[int, int], tuple[int, int]]:
    """What an observation adds: to its bucket and to the sum. Time that went backwards counts as none, and what a clock
    that was set makes longer than LONGEST counts as that: the sum has to last.
    """
    value = min(max(0.0, seconds), LONGEST)
    total = first + len(metric.buckets) + 1
    return (first + bucket(metric, value), 1), (total, int(value * NANOSECONDS))
