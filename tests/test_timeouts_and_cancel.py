"""Timeouts and cancel requests, with real handlers in real workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from deadsure.runtime.store import cancel
from kit.pool import Pool
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

NewPool = Callable[..., Pool]


@pytest.mark.parametrize(("kind", "state"), [("block.fail", "failed"), ("block.unknown", "unknown")])
def test_a_task_that_overruns_its_timeout_is_killed_and_says_so(
    new_pool: NewPool, tmp_path: Path, kind: str, state: str
) -> None:
    pool = new_pool().start()
    task = pool.wait_for(pool.submit(kind, {"go": str(tmp_path / "never")}, timeout=0.3), state)
    if state == "failed":
        assert task["failure_reason"] == (
            "process exited before worker completion (SIGKILL): its timeout had passed"
        )
    else:
        assert task["unknown"]["cause"] == "timeout"
    pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")


def test_a_timeout_that_races_the_finish_never_kills_the_next_task(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(options={"POOL_POLL_INTERVAL": "0.05"}).start()
    rounds = count(long=100, ci=30)
    racing, following = [], []
    for n in range(rounds):
        # Around the timeout, a little earlier and a little later in turn.
        racing.append(pool.submit("note", {"seconds": 0.05 + (n % 11 - 5) * 0.0004}, timeout=0.05, max_attempts=1))
        following.append(pool.submit("block.unknown", {"go": str(tmp_path)}))
    for id in following:
        task = pool.wait_for(id, "succeeded", "unknown", "failed", deadline=60)
        assert (task["state"], task["attempts"]) == ("succeeded", 1), task
    ends = [pool.wait_for(id, "succeeded", "failed")["state"] for id in racing]
    print(f"{ends.count('succeeded')} finished in time, {ends.count('failed')} were killed")


def test_a_cancel_is_seen_by_the_handler_and_ends_the_task_when_it_has_returned(new_pool: NewPool) -> None:
    pool = new_pool(app="deadsure.drills.demo:app").start()
    task = pool.submit("sleep", {"seconds": 60})
    pool.wait_for(task, "running")
    answer = pool.post(f"/tasks/{task}/cancel")
    assert (answer.status, answer.body["state"], answer.body["cancel_requested"]) == (202, "running", True)
    assert pool.wait_for(task, "canceled")["result"] is None


def test_a_cancel_by_another_host_reaches_the_handler_with_the_next_renewal(new_pool: NewPool, store: Store) -> None:
    pool = new_pool(app="deadsure.drills.demo:app", options={"POOL_RENEW_EVERY": "0.3"}).start()
    task = pool.submit("sleep", {"seconds": 60})
    pool.wait_for(task, "running")
    cancel.cancel(store.connection, UUID(task), "elsewhere")
    pool.wait_for(task, "canceled")


@pytest.mark.parametrize(
    ("kind", "state"), [("block.fail", "canceled"), ("block.requeue", "canceled"), ("block.unknown", "succeeded")]
)
def test_a_handler_that_ignores_a_cancel_decides_by_its_kind(
    new_pool: NewPool, tmp_path: Path, kind: str, state: str
) -> None:
    pool = new_pool().start()
    task = pool.submit(kind, {"go": str(tmp_path / "go")})
    pool.wait_for(task, "running")
    assert pool.post(f"/tasks/{task}/cancel").status == 202
    until = time.monotonic() + 0.2
    wait_until(lambda: time.monotonic() > until or pool.task(task)["state"] != "running", "0.2 s have passed")
    assert pool.task(task)["state"] == "running"
    (tmp_path / "go").touch()
    done = pool.wait_for(task, "canceled", "succeeded")
    assert (done["state"], done["result"] is None) == (state, state == "canceled")


def test_a_task_canceled_while_it_was_queued_never_runs(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    first = pool.submit("block.fail", {"go": str(tmp_path / "go")})
    pool.wait_for(first, "running")
    log = tmp_path / "log"
    victim = pool.submit("words", {"text": "a", "log": str(log)})
    assert pool.post(f"/tasks/{victim}/cancel").body["state"] == "canceled"
    (tmp_path / "go").touch()
    pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")
    assert pool.task(victim)["attempts"] == 0
    assert not log.exists()


def test_timeouts_go_on_working_on_a_seat_that_has_seen_many(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(workers=2).start()
    rounds = 8
    tasks = [pool.submit("block.fail", {"go": str(tmp_path / "never")}, timeout=0.2) for _ in range(rounds)]
    for id in tasks:
        pool.wait_for(id, "failed", deadline=60)
    pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")
    assert pool.log.count("a task overran its timeout") == rounds
    exits = sum(worker["exits"] for worker in pool.get("/workers").body["workers"])
    assert exits == rounds, "a timeout killed somebody else as well"
