"""Two pools on one database, 200 random kills of supervisors, workers and api children, with tasks flowing."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
from kit.pool import Pool
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
LEASE = 3.0
OPTIONS = {"POOL_LEASE": str(LEASE), "POOL_RENEW_EVERY": "0.5", "POOL_POLL_INTERVAL": "0.1"}
KINDS = ("note", "count.fail", "count.unknown")


@dataclass
class Chaos:
    """Kills at random, keeps tasks flowing, and starts again what it killed."""

    pools: list[Pool]
    store: Store
    log: Path
    dice: random.Random
    submitted: list[UUID] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int) -> None:
        while self.killed.total() < kills:
            self._fill()
            pool = self.dice.choice(self.pools)
            what = self.dice.choice(("worker", "worker", "worker", "api", "supervisor"))
            if self._kill(pool, what):
                self.killed[what] += 1

    def _kill(self, pool: Pool, what: str) -> bool:
        if what == "supervisor":
            wait_until(lambda: pool.get("/readyz").status == 200, "ready before its supervisor is killed", 60)
            os.kill(pool.pid, signal.SIGKILL)
            assert pool.process is not None
            pool.process.wait(20)
            pool.start(ready=False)
            return True
        workers = pool.worker_pids() if pool.get("/workers").status == 200 else []
        victims = workers if what == "worker" else sorted(set(pool.children()) - set(workers))
        if not workers or not victims:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.dice.choice(victims), signal.SIGKILL)
        return True

    def _fill(self) -> None:
        waiting = self.store.query("select count(*) as n from deadsure.ready")[0]["n"]
        for _ in range(max(0, 30 - int(str(waiting)))):
            payload = f'{{"log": "{self.log}", "seconds": {self.dice.random() * 0.05:.3f}}}'
            self.submitted.append(self.store.submit(self.dice.choice(KINDS), payload))


def test_nothing_is_lost_and_nothing_runs_twice_at_once(
    new_pool: Callable[..., Pool], store: Store, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    pools = [new_pool(workers=2, options=OPTIONS).start() for _ in range(2)]
    chaos = Chaos(pools, store, tmp_path / "log", random.Random(seed))
    chaos.run(count(long=200, ci=40))
    wait_until(lambda: not _running_without_a_living_owner(store), "nobody holds a task who is dead", 2 * LEASE + 5)
    wait_until(lambda: not _open(store), f"all tasks are over or unknown (seed {seed})", 90)

    found = {row["id"] for row in store.query("select id from deadsure.tasks")}
    assert found == set(chaos.submitted), "a task was lost"
    attempts = store.query("select id, kind, attempts from deadsure.tasks")
    runs = _runs(chaos.log)
    for row in attempts:
        if row["kind"] != "note":
            assert len(runs[str(row["id"])]) <= 1, f"{row} ran twice: {runs[str(row['id'])]} (seed {seed})"
            assert int(str(row["attempts"])) <= 1
    print(f"{dict(chaos.killed)} killed, {len(found)} tasks, {_states(store)}")
    for pool in pools:
        wait_until(pool.is_ready, "ready in the end")
        assert pool.stop() == 0


def _open(store: Store) -> list[dict[str, object]]:
    return store.query("select id from deadsure.tasks where state in ('queued', 'running') limit 1")


def _running_without_a_living_owner(store: Store) -> list[dict[str, object]]:
    return store.query(
        "select t.id from deadsure.tasks t left join deadsure.slots s on s.slot = t.owner"
        " left join deadsure.incarnations i on i.incarnation = s.incarnation"
        " where t.state = 'running' and (s.slot is null or s.ended or i.lease_until < clock_timestamp())"
    )


def _runs(log: Path) -> dict[str, list[str]]:
    """Per task, the fences and pids under which its handler was entered."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in log.read_text().splitlines():
        what, task, fence, pid = line.split()
        if what == "start":
            found[task].append(f"fence {fence} pid {pid}")
    return found


def _states(store: Store) -> dict[str, int]:
    rows = store.query("select state, count(*) as n from deadsure.tasks group by state")
    return {str(row["state"]): int(str(row["n"])) for row in rows}
