"""How long one waits: for a fresh task to be picked up, and for a dead worker's task to be settled."""

from __future__ import annotations

import os
import signal
import statistics
import time
from dataclasses import dataclass
from uuid import UUID

from ..runtime import sql
from .serving import ServedPool, serving
from .site import Site

_PICKUPS = sql.statement("bench_pickups")
_STATE = sql.statement("bench_state")
_LOOK_EVERY = 0.0003


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds."""

    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        at = statistics.quantiles([second * 1000 for second in seconds], n=100, method="inclusive")
        return cls(round(at[49], 2), round(at[98], 2), round(max(seconds) * 1000, 2))


def pickups(site: Site, tasks: int, rate: float, workers: int) -> Spread:
    """From a submit over HTTP to the claim, by the database's clock, at so many tasks a second."""
    site.clear()
    with serving(site, workers) as pool:
        for n in range(tasks):
            due = time.monotonic() + 1 / rate
            pool.submit(site.kind("single"))
            time.sleep(max(0.0, due - time.monotonic()))
            if n % 20 == 0:
                site.tell(f"pick-up {n}/{tasks}")
        rows = site.connection.run(_PICKUPS, kind=site.kind("single"))
    return Spread.of([row[0] for row in rows])


def recoveries(site: Site, kills: int, workers: int) -> Spread:
    """From SIGKILL of a busy worker until another session sees the committed verdict."""
    site.clear()
    with serving(site, workers) as pool:
        return Spread.of([_kill(site, pool, n, kills) for n in range(kills)])


def _kill(site: Site, pool: ServedPool, n: int, kills: int) -> float:
    task = pool.submit(site.kind("wait"))
    victim = pool.wait(lambda: _worker_of(pool, task), "a worker has the task", 10)
    began = time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    while site.connection.run(_STATE, id=UUID(task))[0][0] == "running":
        time.sleep(_LOOK_EVERY)
    took = time.perf_counter() - began
    pool.wait(pool.ready, "it is replaced", 10)
    if n % 10 == 0:
        site.tell(f"kill {n}/{kills}")
    return took


def _worker_of(pool: ServedPool, task: str) -> int | None:
    return next((int(worker["pid"]) for worker in pool.workers() if worker["task"] == task), None)
