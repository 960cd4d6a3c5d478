"""Counters across random SIGKILLs of workers: what the database and the log of the kills say, to the last one."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.metrics import Key, Scrape, scrape, watching
from kit.pool import Pool
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
#: Batches, single tasks, tasks that come back, effects, failures: every way in which a worker finishes.
KINDS = ("note", "count.fail", "count.unknown", "flaky", "raise", "async", "pay", "pay.blind")


def test_every_counter_is_exact_across_kills_of_workers(
    new_pool: Callable[..., Pool], store: Store, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    pool = new_pool(workers=3, options={"POOL_POLL_INTERVAL": "0.1"}).start()
    kills = 0
    with watching(pool.port) as watcher:
        _submit(pool, dice, tmp_path, count(long=10_000, ci=1000))
        for _ in range(count(long=100, ci=10)):
            kills += _kill_one(pool, dice)
        wait_until(lambda: not _open(store), f"all tasks are over or unknown (seed {seed})", 300)
        wait_until(lambda: _lookups_are_over(store), "no lookup is under way", 60)
    watcher.look()
    assert watcher.backwards == []
    assert watcher.scrapes > 5
    found = scrape(pool.port)
    _compare(found, store)
    assert found.by("deadsure_worker_exits_total", "cause") == {("SIGKILL",): kills}
    assert pool.stop() == 0


def test_gauges_are_what_is_real_after_many_kills_of_busy_workers(new_pool: Callable[..., Pool], store: Store) -> None:
    pool = new_pool(workers=2).start()
    wait_until(lambda: _states(pool) == {("idle",): 2}, "both are idle")
    kills = count(long=100)
    before: set[Key] = set()
    for number in range(1, kills + 1):
        pool.submit("block.unknown", {"go": "/nonexistent/go"})
        wait_until(lambda: _states(pool) == {("busy",): 1, ("idle",): 1}, "one is busy")
        assert scrape(pool.port).get("deadsure_pool_saturation_ratio", pool="default") == 0.5
        os.kill(_busy(pool), signal.SIGKILL)
        wait_until(lambda: _states(pool) == {("idle",): 2}, "both are idle again")
        found = scrape(pool.port)
        assert found.by("deadsure_worker_exits_total", "cause") == {("SIGKILL",): number}
        assert found.by("deadsure_unknown_total", "kind", "cause") == {("block.unknown", "worker_died"): number}
        before = before or set(found.values)
    began = time.monotonic()
    after = scrape(pool.port)
    assert time.monotonic() - began < 5
    figures = {"deadsure_tasks", "deadsure_oldest_task_seconds", "deadsure_dead_tuples", "deadsure_database_up"}
    new = {name for name, _ in set(after.values) - before if not name.startswith("deadsure_http_")}
    assert new <= figures | {"deadsure_unknown_tasks", "deadsure_unknown_oldest_seconds"}
    # What is in the database is read every few seconds.
    unknown = {"kind": "block.unknown", "needs": "decision"}
    wait_until(lambda: _unknown(pool, **unknown) == kills, "the database's figure follows", 30)
    for row in store.query("select id, version from deadsure.tasks where state = 'unknown'"):
        decision = {"state": "failed", "evidence": "it was this test"}
        decided = pool.post(f"/tasks/{row['id']}/resolution", decision, {"If-Match": f'"{row["version"]}"'})
        assert decided.status == 200, decided
    wait_until(lambda: _unknown(pool, **unknown) == 0, "and goes back", 30)
    found = scrape(pool.port)
    assert found.get("deadsure_unknown_oldest_seconds", **unknown) == 0
    assert found.by("deadsure_resolutions_total", "state") == {("failed",): kills}
    assert found.by("deadsure_tasks_finished_total", "kind", "state") == {("block.unknown", "failed"): kills}


def _states(pool: Pool) -> dict[tuple[str, ...], float]:
    return scrape(pool.port).by("deadsure_workers", "state")


def _unknown(pool: Pool, **labels: str) -> float | None:
    return scrape(pool.port).values.get(("deadsure_unknown_tasks", tuple(sorted(labels.items()))))


def _busy(pool: Pool) -> int:
    pid: int = next(worker["pid"] for worker in pool.get("/workers").body["workers"] if worker["state"] == "busy")
    return pid


def _submit(pool: Pool, dice: random.Random, folder: Path, tasks: int) -> None:
    payload = {"folder": str(folder), "fail": 1}
    for start in range(0, tasks, 500):
        batch = [{"kind": dice.choice(KINDS), "payload": payload} for _ in range(min(500, tasks - start))]
        assert pool.post("/tasks/batch", {"tasks": batch}).status == 202


def _kill_one(pool: Pool, dice: random.Random) -> int:
    """Kill a worker at a random moment, and wait until it is replaced. Returns how many were killed."""
    victim = dice.choice(wait_until(lambda: _ready(pool), "all workers are there"))
    wait_until(lambda: dice.random() < 0.1, "some time later")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in pool.worker_pids(), "it is gone")
    return 1


def _ready(pool: Pool) -> list[int]:
    workers = pool.get("/workers").body["workers"]
    pids = [worker["pid"] for worker in workers if worker["state"] in ("idle", "busy")]
    return pids if len(pids) == pool.workers else []


def _open(store: Store) -> list[dict[str, object]]:
    return store.query("select id from deadsure.tasks where state in ('queued', 'running') limit 1")


def _lookups_are_over(store: Store) -> bool:
    return not store.query("select id from deadsure.unknowns where needs = 'lookup'") and not _open(store)


def _compare(found: Scrape, store: Store) -> None:
    """Everything that the database knows, against what was counted."""

    def rows(text: str) -> dict[tuple[str, ...], float]:
        """The last column by the others."""
        table = [[str(value) for value in row.values()] for row in store.query(text)]
        return {tuple(labels): float(number) for *labels, number in table}

    assert found.by("deadsure_tasks_finished_total", "kind", "state") == rows(
        "select kind, state, count(*) from deadsure.tasks where state <> 'unknown' group by 1, 2"
    )
    assert found.by("deadsure_unknown_total", "kind", "cause") == rows(
        "select t.kind, coalesce(e.detail ->> 'cause', 'worker_died'), count(*) from deadsure.events e"
        " join deadsure.tasks t on t.id = e.task_id"
        " where e.event in ('recovered', 'unknown') and e.detail ->> 'to' = 'unknown' group by 1, 2"
    )
    recoveries = rows("select detail ->> 'proof', count(*) from deadsure.events where event = 'recovered' group by 1")
    assert found.by("deadsure_recoveries_total", "proof") == recoveries
    assert found.by("deadsure_death_to_recovered_seconds_count", "proof") == recoveries
    # Every claim and every recovery raises the fence by one, and nothing lowers it.
    assert found.by("deadsure_task_wait_seconds_count", "kind") == rows(
        "select t.kind, sum(t.fence - (select count(*) from deadsure.events e"
        " where e.task_id = t.id and e.event = 'recovered')) from deadsure.tasks t group by 1"
    )
    assert found.get("deadsure_claims_total", pool="default", outcome="won") == found.sum(
        "deadsure_task_wait_seconds_count"
    )
    # Terminal tasks that were not brought there by a recovery or a lookup, and every finish that left one open.
    finishes = rows(
        "select (select count(*) from deadsure.tasks where state <> 'unknown')"
        " + (select count(*) from deadsure.events where event in ('retry', 'unknown'))"
        " - (select count(*) from deadsure.events where event in ('recovered', 'reconciled')"
        " and detail ->> 'to' in ('succeeded', 'failed', 'canceled'))"
    )[()]
    by_outcome = found.by("deadsure_finishes_total", "outcome")
    assert by_outcome[("committed",)] + by_outcome.get(("settled_by_reading",), 0) == finishes
    assert ("refused",) not in by_outcome
    print(f"{by_outcome} {recoveries}")
    assert found.by("deadsure_reconciles_total", "outcome") == rows(
        "select coalesce(detail ->> 'verdict', detail ->> 'lookup'), count(*) from deadsure.events"
        " where event = 'reconciled' group by 1"
    )
