"""What a pool's processes hold for themselves, memory (USS) and descriptors: it stays flat.

    python benchmarks/memory.py                 while a million tasks go through as fast as they can: some minutes
    python benchmarks/memory.py --minutes 60    for an hour of steady work, in batches, one at a time and over HTTP

Starts its own PostgreSQL (durable: fsync on).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import place
from deadsure.bench.serving import ServedPool, serving
from deadsure.bench.site import Site

PORTION = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with place.made(print) as site, serving(site, arguments.workers) as pool:
        print(f"{'tasks':>10} {'supervisor':>18} {'a worker':>18} {'api child':>18}   MB, descriptors")
        if arguments.minutes is None:
            go_through(site, pool, arguments.tasks)
        else:
            go_on(site, pool, arguments.minutes * 60)
    return 0


def go_through(site: Site, pool: ServedPool, tasks: int) -> None:
    done = 0
    for stop in (PORTION, tasks // 2, tasks):
        while done < stop:
            site.fill("batch", PORTION)
            done += PORTION
            while int(site.connection._driver.run("select count(*) from deadsure.ready")[0][0]) > PORTION // 4:
                time.sleep(0.02)
        report(pool, done)


def go_on(site: Site, pool: ServedPool, seconds: float) -> None:
    """Each second 100 tasks in batches, 100 one at a time, and 10 over HTTP that are also read."""
    began, done = time.monotonic(), 0
    reports = [seconds * part / 6 for part in range(1, 7)]
    report(pool, done)
    while reports:
        for kind in ("batch", "single"):
            site.fill(kind, 100)
        for _ in range(10):
            pool.get(f"/tasks/{pool.submit(site.kind('single'))}")
        pool.get("/workers")
        done += 210
        if time.monotonic() - began >= reports[0]:
            reports.pop(0)
            report(pool, done)
        time.sleep(max(0.0, began + done / 210 - time.monotonic()))


def report(pool: ServedPool, done: int) -> None:
    workers = [int(worker["pid"]) for worker in pool.workers()]
    supervisor = pool.process.pid
    children = [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    api = next(pid for pid in children if pid not in workers)
    held = "".join(f"{uss(pid):>13.1f}, {descriptors(pid):>3}" for pid in (supervisor, workers[0], api))
    print(f"{done:>10} {held}", flush=True)


def descriptors(pid: int) -> int:
    """How many descriptors it has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def uss(pid: int) -> float:
    """Megabytes that only this process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    sys.exit(main())
