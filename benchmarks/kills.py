"""How long a death takes to become a committed verdict, and how much memory a pool's processes hold for themselves.

Run with `make bench`. Starts its own PostgreSQL (durable: fsync on) and its own pool, kills busy workers with SIGKILL,
and watches the task's row from another session until it has left `running`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path
from uuid import UUID

from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate
from kit import postgres
from kit.pool import Pool, new_runtime_dir
from kit.wait import wait_until


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    with postgres.running_server(durable=True) as server, postgres.database(server) as address:
        settings = db.Settings(dsn.parse(address))
        connection = db.connect(settings, "bench")
        migrate.migrate(connection)
        pool = Pool(settings, new_runtime_dir(), workers=arguments.workers)
        try:
            pool.start()
            report(pool, [kill(pool, connection) for _ in range(arguments.kills)])
        finally:
            pool.close()
            shutil.rmtree(pool.runtime_dir)
    return 0


def kill(pool: Pool, connection: db.Connection) -> float:
    """Seconds from SIGKILL of a busy worker until another session sees the committed verdict."""
    task = pool.submit("block.fail", {"go": "/nonexistent/go"})
    victim = wait_until(lambda: _worker_of(pool, task), "a worker has the task")
    look = connection._driver.prepare("select state from deadsure.tasks where id = cast(:id as uuid)")
    started = time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    while look.run(id=str(UUID(task)))[0][0] == "running":
        time.sleep(0.0003)
    took = time.perf_counter() - started
    look.close()
    wait_until(lambda: len(pool.worker_pids()) == pool.workers, "a replacement")
    return took


def _worker_of(pool: Pool, task: str) -> int | None:
    return next((w["pid"] for w in pool.get("/workers").body["workers"] if w["task"] == task), None)


def report(pool: Pool, took: list[float]) -> None:
    milliseconds = sorted(second * 1000 for second in took)
    at = statistics.quantiles(milliseconds, n=100, method="inclusive")
    print(f"from SIGKILL of a busy worker to the committed verdict, over {len(took)} kills:")
    print(f"  p50 {at[49]:.1f} ms   p95 {at[94]:.1f} ms   p99 {at[98]:.1f} ms   most {milliseconds[-1]:.1f} ms")
    print("private memory (USS):")
    print(f"  supervisor {uss(pool.pid):.1f} MB")
    workers = [uss(pid) for pid in pool.worker_pids()]
    print(f"  a worker   {statistics.median(workers):.1f} MB (median of {len(workers)})")
    apis = [uss(pid) for pid in pool.children() if pid not in pool.worker_pids()]
    print(f"  api child  {max(apis):.1f} MB")


def uss(pid: int) -> float:
    """Megabytes that only this process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(private) / 1024


if __name__ == "__main__":
    sys.exit(main())
