"""The memory that a pool's processes hold for themselves while a million tasks go through: it stays flat.

    python benchmarks/memory.py                 some minutes; prints the USS of each process at start, middle and end

Starts its own PostgreSQL (durable: fsync on).
"""

from __future__ import annotations

import argparse
import statistics
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
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with place.made(print) as site, serving(site, arguments.workers) as pool:
        go_through(site, pool, arguments.tasks)
    return 0


def go_through(site: Site, pool: ServedPool, tasks: int) -> None:
    done = 0
    print(f"{'tasks':>10} {'supervisor':>12} {'a worker':>12} {'api child':>12}   USS in MB")
    for stop in (PORTION, tasks // 2, tasks):
        while done < stop:
            site.fill("batch", PORTION)
            done += PORTION
            while int(site.connection._driver.run("select count(*) from deadsure.ready")[0][0]) > PORTION // 4:
                time.sleep(0.02)
        report(pool, done)


def report(pool: ServedPool, done: int) -> None:
    workers = [int(worker["pid"]) for worker in pool.workers()]
    supervisor = pool.process.pid
    children = [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    api = max(uss(pid) for pid in children if pid not in workers)
    held = statistics.median(uss(pid) for pid in workers)
    print(f"{done:>10} {uss(supervisor):>12.1f} {held:>12.1f} {api:>12.1f}", flush=True)


def uss(pid: int) -> float:
    """Megabytes that only this process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    sys.exit(main())
