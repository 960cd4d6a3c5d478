"""What a scrape sees: all pages added up, the seats as they are, and the figures that are fresh.

It reads shared memory alone: no database, no lock, no file. Workers that died have left their cells behind, and those
that live are asked for nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ..runtime.blackbox import PoolMemory, worker_state
from . import catalogue as c
from . import cells, figures
from .catalogue import CATALOGUE, MOST_KINDS, MOST_PROVIDERS, OTHER, Metric
from .figures import Part, Row
from .memory import MetricsMemory, Page
from .supervisor import UP

#: One series: its label values, and its cells, or the one value it has.
Series = tuple[tuple[str, ...], Sequence[float]]
#: Everything that one scrape has seen, in the catalogue's order.
Seen = list[tuple[Metric, list[Series]]]


@dataclass(frozen=True, slots=True)
class Pool:
    """What is told to the collector: the pool's name, how many workers it is to have, and which version runs."""

    name: str
    workers: int
    version: str


class Collector:
    """For the registry of prometheus-client: everything in the catalogue, in its order."""

    def __init__(self, pool: Pool, memory: PoolMemory, metrics: MetricsMemory) -> None:
        self._pool = pool
        self._memory = memory
        self._metrics = metrics

    def look(self) -> Seen:
        """One scrape."""
        scrape = Scrape(self._pool, self._memory, self._metrics)
        return [(metric, list(scrape.series(metric))) for metric in CATALOGUE]

    def collect(self) -> Iterator[Family]:
        """One scrape, as the library wants it."""
        return (family(metric, series) for metric, series in self.look())


class Scrape:
    """One look at the memory."""

    def __init__(self, pool: Pool, memory: PoolMemory, metrics: MetricsMemory) -> None:
        self._pool = pool
        self._memory = memory
        self._metrics = metrics
        self._kinds = metrics.kinds.all()
        self._providers = metrics.providers.all()
        self._figures = figures.read(metrics)
        self._sum = _added_up(metrics.pages)

    def series(self, metric: Metric) -> Iterator[Series]:
        """All series of one metric."""
        return _SOURCES[metric.name](self, metric)

    def _of_kinds(self, metric: Metric) -> Iterator[Series]:
        return self._of_names(metric, cells.BLOCKS["kind"], self._kinds, MOST_KINDS, cells.kind_at)

    def _of_providers(self, metric: Metric) -> Iterator[Series]:
        return self._of_names(metric, cells.BLOCKS["provider"], self._providers, MOST_PROVIDERS, cells.provider_at)

    def _of_pool(self, metric: Metric) -> Iterator[Series]:
        own = (self._pool.name,) if "pool" in metric.labels else ()
        for values, start in cells.BLOCKS["pool"].series(metric):
            yield (*own, *values), self._sum[start : start + cells.width(metric)]

    def _of_supervisor(self, metric: Metric) -> Iterator[Series]:
        value: float = self._metrics.supervisor.cells[cells.of_pool(metric)]
        if metric is c.START_TIME:
            value = value / 1e9
        elif metric is c.ROUND_AGE and value:
            value = max(0.0, (time.monotonic_ns() - value) / 1e9)
        yield (self._pool.name,), [value]

    def _of_names(
        self, metric: Metric, block: cells.Block, names: list[str], other: int, begin: Callable[[int], int]
    ) -> Iterator[Series]:
        """One series for each name. That of all others is there once the table is full."""
        offsets, width, total = list(block.series(metric)), cells.width(metric), self._sum
        for index, name in [*enumerate(names), *([(other, OTHER)] if len(names) == other else [])]:
            first = begin(index)
            for values, offset in offsets:
                yield (name, *values), total[first + offset : first + offset + width]

    def _of_processes(self, metric: Metric) -> Iterator[Series]:
        start = cells.of_pool(metric)
        for name, page in self._processes(metric):
            values = page.cells[start : start + cells.width(metric)].tolist()
            if metric is not c.DATABASE_UP:
                yield (name,), values
            elif values[0]:  # somebody has asked
                yield (name,), [float(values[0] == UP)]

    def _processes(self, metric: Metric) -> Iterator[tuple[str, Page]]:
        if metric is c.DATABASE_UP:
            yield "supervisor", self._metrics.supervisor
        for number, page in enumerate(self._metrics.apis, 1):
            yield f"api-{number}", page

    def _answers(self, metric: Metric) -> Iterator[Series]:
        found: dict[tuple[str, ...], list[int]] = {}
        for page in self._metrics.apis:
            for key, values in page.answers.series() if page.answers is not None else ():
                before = found.get(key)
                found[key] = values if before is None else list(map(add, before, values))
        for labels, values in sorted(found.items()):
            yield labels, values if metric is c.HTTP_REQUEST else [sum(values[:-1])]

    def _of_build(self, _: Metric) -> Iterator[Series]:
        yield (self._pool.version,), [1]

    def _of_lease(self, _: Metric) -> Iterator[Series]:
        until = self._memory.read_header().trusted_until
        yield (self._pool.name,), [max(0.0, (until - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9)]

    def _of_seats(self, metric: Metric) -> Iterator[Series]:
        pool = self._pool
        states: Counter[str | None] = Counter(worker_state(seat) for seat in self._memory.seats)
        if metric is c.POOL_SIZE:
            yield (pool.name,), [pool.workers]
        elif metric is c.SATURATION:
            yield (pool.name,), [states["busy"] / pool.workers]
        else:
            for state in c.WORKER_STATES:
                yield (pool.name, state), [states[state]]

    def _of_ages(self, _: Metric) -> Iterator[Series]:
        """Of a part that was never read, since the supervisor's start: nobody has seen it for so long."""
        started = self._metrics.supervisor.cells[cells.of_pool(c.START_TIME)]
        never = max(0.0, time.time() - started / 1e9) if started else 0.0
        for part in c.PARTS:
            found = self._figures.get(part)
            yield (part,), [never if found is None else found.age]

    def _of_figures(self, metric: Metric) -> Iterator[Series]:
        for name in _PARTS[metric.name]:
            part = self._figures.get(name)
            if part is not None and part.age <= figures.FRESH:
                yield from _figure(metric, part)


_SOURCES: dict[str, Callable[[Scrape, Metric], Iterator[Series]]] = {
    **{metric.name: Scrape._of_kinds for metric in cells.OF_KIND},
    **{metric.name: Scrape._of_providers for metric in cells.OF_PROVIDER},
    **{metric.name: Scrape._of_processes for metric in cells.OF_PROCESS},
    **{metric.name: Scrape._of_supervisor for metric in cells.OF_SUPERVISOR},
    **{metric.name: Scrape._of_pool for metric in cells.OF_POOL},
    **{metric.name: Scrape._answers for metric in (c.HTTP_REQUESTS, c.HTTP_REQUEST)},
    **{metric.name: Scrape._of_seats for metric in (c.WORKERS, c.POOL_SIZE, c.SATURATION)},
    c.BUILD_INFO.name: Scrape._of_build,
    c.LEASE_REMAINING.name: Scrape._of_lease,
    c.FIGURES_AGE.name: Scrape._of_ages,
    **{
        metric.name: Scrape._of_figures
        for metric in (
            c.TASKS, c.OLDEST_TASK, c.UNKNOWN_TASKS, c.UNKNOWN_OLDEST, c.OLDEST_TRANSACTION, c.DEAD_TUPLES,
        )
    },
}  # fmt: skip
_PARTS = {
    c.TASKS.name: ("queued", "held"),
    c.OLDEST_TASK.name: ("queued", "held"),
    c.UNKNOWN_TASKS.name: ("unknown",),
    c.UNKNOWN_OLDEST.name: ("unknown",),
    c.OLDEST_TRANSACTION.name: ("server",),
    c.DEAD_TUPLES.name: ("server",),
}


def _figure(metric: Metric, part: Part) -> Iterator[Series]:
    rows: Iterable[Row] = part.rows
    if metric is c.OLDEST_TRANSACTION:
        yield (), [next((row.oldest for row in rows if row.oldest is not None), 0.0)]
        return
    for row in rows:
        if metric in (c.OLDEST_TASK, c.UNKNOWN_OLDEST):
            if row.oldest is not None:
                yield row.labels, [row.oldest]
        elif metric is not c.DEAD_TUPLES or row.oldest is None:
            yield row.labels, [row.count]


def _added_up(pages: Sequence[Page]) -> list[int]:
    """The sum over all pages, cell by cell. Gauges of single processes are in it too, and nobody asks for those."""
    first, *others = (page.cells.tolist() for page in pages)
    total: list[int] = first
    for values in others:
        total = list(map(add, total, values))
    return total


def family(metric: Metric, series: Iterable[Series]) -> Family:
    """A metric and its series, as the library wants them."""
    if metric.type == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        bounds = [*(str(float(bucket)) for bucket in metric.buckets), "+Inf"]
        for labels, values in series:
            *counts, _, total = numbers(metric, values)
            histogram.add_metric(labels, list(zip(bounds, counts, strict=True)), total)
        return histogram
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    made: CounterMetricFamily | GaugeMetricFamily = kind(metric.name, metric.help, labels=metric.labels)
    for labels, values in series:
        made.add_metric(labels, values[0])
    return made


def numbers(metric: Metric, values: Sequence[float]) -> Sequence[float]:
    """The numbers that stand in a series' lines: of a histogram the buckets, added up, then how many, then the sum."""
    if metric.type != "histogram":
        return values
    counts = list(accumulate(values[:-1]))
    return [*counts, counts[-1], values[-1] / cells.NANOSECONDS]
