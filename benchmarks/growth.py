"""Does the hot path stay flat as the tables grow, while an old snapshot is held, with more workers and queues?

    python benchmarks/growth.py --json growth.json        more than half an hour; prints a table
    python benchmarks/growth.py --plot growth.json docs/assets   draws it (needs matplotlib)

Starts its own PostgreSQL (durable: fsync on). Each figure is the rate of a window of some seconds; the cases take turns
with the almost empty table, so that a ratio is one of neighbours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import place
from deadsure.bench.serving import ServedPool, serving
from deadsure.bench.site import Site
from deadsure.runtime import db
from prometheus_client.parser import text_string_to_metric_families

_FINISHED = """
insert into deadsure.tasks (id, kind, queue, priority, state, on_death, attempts, max_attempts, created_at, run_at,
                            started_at, finished_at, payload, result)
select gen_random_uuid(), :kind, 'elsewhere', 0, 'succeeded', 'fail', 1, 1, now(), now(), now(), now(), '{}', '{}'
  from generate_series(1, :number)
"""
_QUEUED = """
with stored as (
  insert into deadsure.tasks (id, kind, queue, priority, on_death, max_attempts, created_at, run_at, payload)
  select gen_random_uuid(), :kind, cast(:queue as text) || coalesce('.' || nullif(n % cast(:queues as integer), 0), ''),
         0, 'fail', 1, now(), clock_timestamp(), '{}' from generate_series(1, :number) n
  returning queue, priority, run_at, id, kind)
insert into deadsure.ready (queue, priority, run_at, id, kind) select queue, priority, run_at, id, kind from stored
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows; for a try")
    parser.add_argument("--json", type=Path, default=Path("growth.json"))
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("JSON", "FOLDER"))
    arguments = parser.parse_args()
    if arguments.plot is not None:
        draw(json.loads(arguments.plot[0].read_text()), arguments.plot[1])
        return 0
    with place.made(say, statement_timeout=600) as site:
        found = []
        for row in Growth(site, arguments.rounds, arguments.seconds, arguments.scale).all():
            found.append(row)
            arguments.json.write_text(json.dumps(found, indent=1))
            say(table(found[-1:]))
    print(table(found))
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Growth:
    """All cases, each `rounds` times beside the almost empty table."""

    def __init__(self, site: Site, rounds: int, seconds: float, scale: float) -> None:
        self.site = site
        self.rounds = rounds
        self.seconds = seconds
        self.scale = scale

    def all(self) -> Iterator[dict[str, Any]]:
        """One after the other: it takes long, and what is known should not be lost with the rest."""
        for number in (10_000, 100_000, 1_000_000):
            yield self.beside(f"{number:,} queued", lambda n=number: self.queued(n))  # type: ignore[misc]
        yield self.beside("1,000,000 finished", lambda: self.finished(1_000_000))
        yield self.snapshot(60_000)
        for workers in (4, 8, 16):
            yield self.beside(f"{workers} workers", lambda: self.queued(20_000), workers)
        yield self.beside("10 queues", lambda: self.queued(20_000, 10), queues=10)

    def beside(self, case: str, fill: Callable[[], None], workers: int = 2, queues: int = 1) -> dict[str, Any]:
        """The rate in this case and on the almost empty table, in turns."""
        rates: list[float] = []
        bases: list[float] = []
        for number in range(self.rounds):
            say(f"{case}, round {number + 1} of {self.rounds}")
            bases.append(self.measure(lambda: self.queued(20_000), 2))
            rates.append(self.measure(fill, workers, queues))
        return self.row(case, rates, bases)

    def row(self, case: str, rates: list[float], bases: list[float]) -> dict[str, Any]:
        ratio = statistics.median(rate / base for rate, base in zip(rates, bases, strict=True))
        return {"case": case, "rates": rates, "bases": bases, "ratio": ratio}

    def measure(self, fill: Callable[[], None], workers: int, queues: int = 1) -> float:
        """Tasks a second that leave the queue in the window."""
        self.site.clear()
        query(self.site, "delete from deadsure.tasks where queue = 'elsewhere'")
        query(self.site, "delete from deadsure.ready")
        fill()
        for name in ("tasks", "ready"):
            query(self.site, f"vacuum (analyze) deadsure.{name}")
        query(self.site, "checkpoint")
        names = [self.site.name, *(f"{self.site.name}.{number}" for number in range(1, queues))]
        with serving(self.site, workers, queues=names) as pool:
            return self.window(pool)

    def window(self, pool: ServedPool) -> float:
        time.sleep(0.5)
        before, began = finished(pool), time.perf_counter()
        time.sleep(self.seconds)
        after, ended = finished(pool), time.perf_counter()
        assert self.waiting() > 0, "the queue ran empty"
        return (after - before) / (ended - began)

    def waiting(self) -> int:
        return int(query(self.site, "select count(*) from deadsure.ready")[0][0])

    def queued(self, number: int, queues: int = 1) -> None:
        query(self.site, _QUEUED, kind=self.site.kind("single"), queue=self.site.name, queues=queues,
              number=max(20_000, int(number * self.scale)))  # fmt: skip

    def finished(self, number: int) -> None:
        query(self.site, _FINISHED, kind=self.site.kind("wait"), number=int(number * self.scale))
        self.queued(20_000)

    def snapshot(self, number: int) -> dict[str, Any]:
        """The rate of the last tasks of `number`, with an old snapshot held since before the first, and without."""
        rates: list[float] = []
        bases: list[float] = []
        for turn in range(self.rounds):
            say(f"an old snapshot, round {turn + 1} of {self.rounds}")
            bases.append(self.through(int(number * self.scale)))
            with held(self.site):
                rates.append(self.through(int(number * self.scale)))
        return self.row(f"an old snapshot held while {number:,} pass", rates, bases)

    def through(self, number: int) -> float:
        self.site.clear()
        self.queued(number + 20_000)
        query(self.site, "vacuum (analyze) deadsure.ready")
        with serving(self.site, 2) as pool:
            while finished(pool) < number:
                time.sleep(0.5)
            return self.window(pool)


@contextmanager
def held(site: Site) -> Iterator[None]:
    """A transaction elsewhere that keeps an old snapshot."""
    other = db.connect(site.database, "an old snapshot")
    other._driver.run("set idle_in_transaction_session_timeout = 0")
    other._driver.run("begin isolation level repeatable read")
    other._driver.run("select count(*) from deadsure.kinds")
    try:
        yield
    finally:
        other.discard()


def finished(pool: ServedPool) -> float:
    """The tasks that this pool has finished: by its metrics, since counting a million rows would disturb it."""
    with urlopen(f"http://{pool.address}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    name = "deadsure_tasks_finished_total"
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def query(site: Site, text: str, **parameters: Any) -> list[Any]:
    rows: list[Any] = site.connection._driver.run(text, **parameters)
    return rows


def table(found: list[dict[str, Any]]) -> str:
    lines = [f"{'case':44}{'tasks/s':>10}{'beside':>10}{'ratio':>8}"]
    for row in found:
        rate, base = statistics.median(row["rates"]), statistics.median(row["bases"])
        lines.append(f"{row['case']:44}{rate:>10.0f}{base:>10.0f}{row['ratio']:>8.2f}")
    return "\n".join(lines)


def draw(found: list[dict[str, Any]], folder: Path) -> None:
    from matplotlib import pyplot  # not installed with the rest

    names = [row["case"] for row in found]
    figure, axis = pyplot.subplots(figsize=(9, 0.45 * len(found) + 1.4))
    axis.barh(names, [row["ratio"] for row in found], color="#3b6ea5")
    axis.axvline(1, color="#888888", linewidth=1)
    axis.invert_yaxis()
    axis.set_xlabel("throughput against the almost empty table with 2 workers, same run")
    for line, row in enumerate(found):
        axis.text(row["ratio"] + 0.02, line, f"{row['ratio']:.2f}", va="center")
    figure.tight_layout()
    figure.savefig(folder / "growth.png", dpi=110)


if __name__ == "__main__":
    sys.exit(main())
