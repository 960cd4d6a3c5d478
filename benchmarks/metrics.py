"""What counting costs: an increment, what a worker counts for one task, and a scrape of 8 workers with 50 kinds.

Run with `make bench`. Needs no database. Exit code 1 when an increment or a scrape takes longer than is promised.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

from deadsure.metrics import catalogue as c
from deadsure.metrics import cells
from deadsure.metrics.collector import Collector, Pool
from deadsure.metrics.exposition import Exposition
from deadsure.metrics.memory import MetricsMemory
from deadsure.metrics.worker import WorkerCounter
from deadsure.runtime.blackbox import PoolMemory
from deadsure.runtime.facts import Ended, Ran, Stepped
from deadsure.runtime.model import Claimed
from deadsure.runtime.states import State

WORKERS = 8
#: Seconds that are promised.
INCREMENT = 1e-6
SCRAPE = 0.020


def main() -> int:
    memory = MetricsMemory(WORKERS + 1, 1)
    for number in range(c.MOST_KINDS):
        memory.kinds.index(f"kind.number.{number}")
    for number in range(c.MOST_PROVIDERS):
        memory.providers.index(f"provider-{number}")
    won = cells.of_pool(c.CLAIMS, "won")
    increment = best(lambda: memory.supervisor.add(won), 100_000)
    step = best(one_task(memory), 10_000)
    exposition = Exposition(Collector(Pool("bench", WORKERS, "0"), PoolMemory(WORKERS + 1), memory))
    scrape = best(lambda: exposition.text(""), 10)
    size, lines = len(exposition.text("")[0]), exposition.text("")[0].count(b"\n")
    print("metrics:")
    print(f"  an increment                        {increment * 1e6:6.2f} us")
    print(f"  all that a task counts in a worker  {step * 1e6:6.2f} us")
    seen = f"{lines} lines, {size // 1024} KiB"
    print(f"  a scrape, {WORKERS} workers, {c.MOST_KINDS} kinds       {scrape * 1e3:6.2f} ms ({seen})")
    return int(increment > INCREMENT or scrape > SCRAPE)


def one_task(memory: MetricsMemory) -> Callable[[], None]:
    """What the worker's counter hears for each task."""
    counter = WorkerCounter(memory, memory.seats[0], uuid4())
    now = datetime.now(UTC)
    task = Claimed(uuid4(), 1, "kind.number.7", 1, None, "default", 0, now, now, "{}")
    ran = Ran(task.kind, 0.01)
    stepped = Stepped((Ended(task.kind, State.SUCCEEDED),), (task,), [(task.id, task.fence)])

    def hear() -> None:
        counter(ran)
        counter(stepped)

    return hear


def best(work: Callable[[], object], times: int) -> float:
    """Seconds of CPU a call, in the quickest of five rounds: what others run beside it does not count."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            work()
        rounds.append((time.process_time() - began) / times)
    return min(rounds)


if __name__ == "__main__":
    sys.exit(main())
