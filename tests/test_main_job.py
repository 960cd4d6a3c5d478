"""The main job with real processes: submit over HTTP, run, finish, and tell the truth after every kind of death."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db
from kit.pool import Pool, alive
from kit.wait import wait_until

NewPool = Callable[..., Pool]
TEXT = {"text": "größe 界"}
COUNTED = {"words": 2, "bytes": 11, "runes": 7}


def test_a_post_is_accepted_before_anything_has_run_and_only_get_tells_the_result(
    new_pool: NewPool, tmp_path: Path
) -> None:
    pool = new_pool().start()
    go = tmp_path / "go"
    answer = pool.post("/tasks", {"kind": "block.fail", "payload": {"go": str(go)}})
    assert (answer.status, answer.body["state"], answer.body["result"]) == (202, "queued", None)
    assert pool.get(answer.headers["Location"]).status == 200
    pool.wait_for(answer.body["id"], "running")
    go.touch()
    task = pool.wait_for(answer.body["id"], "succeeded")
    assert (task["result"], task["attempts"]) == ({"attempt": 1}, 1)


def test_real_text_is_counted(new_pool: NewPool) -> None:
    pool = new_pool(app="deadsure.drills.demo:app").start()
    task = pool.wait_for(pool.submit("text.analyze", TEXT), "succeeded")
    assert task["result"] == COUNTED


@pytest.mark.parametrize(
    ("kind", "payload", "state", "result", "reason"),
    [
        ("raise", {}, "failed", None, "ValueError: could not go on after {'words': 99}"),
        ("async", {}, "succeeded", "awaited", None),
        ("return", {"what": "none"}, "succeeded", None, None),
    ],
)
def test_what_a_handler_does_is_what_the_task_says(
    new_pool: NewPool, kind: str, payload: dict[str, Any], state: str, result: object, reason: str | None
) -> None:
    pool = new_pool().start()
    task = pool.wait_for(pool.submit(kind, payload), "succeeded", "failed")
    assert (task["state"], task["result"], task["failure_reason"]) == (state, result, reason)


@pytest.mark.parametrize("what", ["nul", "surrogate", "nan", "object"])
def test_a_result_that_cannot_be_stored_fails_the_task_with_that_reason(new_pool: NewPool, what: str) -> None:
    pool = new_pool().start()
    task = pool.wait_for(pool.submit("return", {"what": what}), "failed")
    assert task["failure_reason"].startswith("result_not_storable")
    assert pool.wait_for(pool.submit("words", TEXT), "succeeded")["result"] == COUNTED


def test_without_the_database_the_api_says_503_and_afterwards_all_is_well(
    new_pool: NewPool, server: EmbeddedPostgres
) -> None:
    pool = new_pool().start()
    before = pool.submit("words", TEXT)
    pool.wait_for(before, "succeeded")
    server.stop("immediate")
    try:
        for answer in (pool.get(f"/tasks/{before}"), pool.post("/tasks", {"kind": "words", "payload": TEXT})):
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
        assert pool.get("/livez").status == 200
    finally:
        server.start()
    wait_until(lambda: pool.get(f"/tasks/{before}").status == 200, "reads work again")
    wait_until(lambda: pool.get("/readyz").status == 200, "the pool is ready again")
    assert pool.wait_for(pool.submit("words", TEXT), "succeeded")["result"] == COUNTED
    assert pool.process is not None
    assert pool.process.poll() is None


@pytest.mark.kills
def test_after_the_whole_pool_was_killed_the_next_start_says_what_became_of_everything(
    new_pool: NewPool, tmp_path: Path
) -> None:
    pool = new_pool().start()
    running = pool.submit("block.fail", {"go": str(tmp_path / "never")})
    pool.wait_for(running, "running")
    waiting = pool.submit("words", TEXT)
    pool.kill_all()
    assert _states(pool.database) == {running: "running", waiting: "queued"}

    pool.start()
    task = pool.wait_for(running, "failed")
    assert task["failure_reason"] == "process exited before worker completion"
    assert task["result"] is None
    assert pool.wait_for(waiting, "succeeded")["result"] == COUNTED
    assert "recovered previous pool: failed=1 unknown=0 queued=1 proof=pool_lock" in pool.log

    before = _rows(pool.database)
    pool.kill_all()
    pool.start()
    assert "recovered previous pool: failed=0 unknown=0 queued=0 proof=pool_lock" in pool.log
    assert _rows(pool.database) == before
    assert pool.submit("words", TEXT) not in {running, waiting}


@pytest.mark.kills
@pytest.mark.parametrize(("kind", "state"), [("block.fail", "failed"), ("block.unknown", "unknown")])
def test_a_killed_workers_task_is_settled_and_nobody_else_is_disturbed(
    new_pool: NewPool, tmp_path: Path, kind: str, state: str
) -> None:
    pool = new_pool(workers=2).start()
    other = pool.submit("block.unknown", {"go": str(tmp_path / "go")})
    pool.wait_for(other, "running")
    task = pool.submit(kind, {"go": str(tmp_path / "never")})
    pool.wait_for(task, "running")
    victim = _pid_of(pool, task)
    os.kill(victim, signal.SIGKILL)
    settled = pool.wait_for(task, state)
    if state == "failed":
        assert settled["failure_reason"] == "process exited before worker completion (SIGKILL)"
    else:
        unknown = settled["unknown"]
        assert (unknown["cause"], unknown["proof"], unknown["signal"], unknown["phase"], unknown["needs"]) == (
            "worker_died", "exit", "SIGKILL", "handling", "decision",
        )  # fmt: skip
    assert pool.task(other)["state"] == "running"
    (tmp_path / "go").touch()
    assert pool.wait_for(other, "succeeded")["attempts"] == 1
    wait_until(lambda: len(pool.worker_pids()) == 2 and victim not in pool.worker_pids(), "a replacement works")
    assert pool.wait_for(pool.submit("words", TEXT), "succeeded")["result"] == COUNTED


@pytest.mark.parametrize("state", ["running", "failed", "canceled", "succeeded"])
def test_the_same_key_again_is_the_same_task_in_every_state_and_never_a_second_run(
    new_pool: NewPool, tmp_path: Path, state: str
) -> None:
    pool = new_pool().start()
    go, log = tmp_path / "go", tmp_path / "log"
    kind = "raise" if state == "failed" else "block.unknown"
    body = {"kind": kind, "payload": {"go": str(go), "log": str(log)}}
    if state == "canceled":
        blocker = pool.submit("block.fail", {"go": str(go)})
        pool.wait_for(blocker, "running")
    first = pool.post("/tasks", body, {"Idempotency-Key": "k"}).body["id"]
    if state == "canceled":
        pool.post(f"/tasks/{first}/cancel")
    if state != "running":
        go.touch()
    before = pool.wait_for(first, state)
    again = pool.post("/tasks", body, {"Idempotency-Key": "k"})
    assert (again.status, again.body["id"], again.body["state"]) == (202, first, state)
    go.touch()
    pool.wait_for(pool.submit("words", TEXT), "succeeded")
    assert pool.task(first)["attempts"] == before["attempts"] == (0 if state == "canceled" else 1)
    assert len(_rows(pool.database)) == (3 if state == "canceled" else 2)


def test_a_requeue_task_runs_again_until_its_budget_is_spent(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    log = tmp_path / "log"
    task = pool.wait_for(pool.submit("die", {"log": str(log)}), "failed")
    assert task["attempts"] == 3
    assert len(log.read_text().splitlines()) == 3
    assert task["failure_reason"].startswith("process exited before worker completion (SIGKILL); all 3 attempts")
    assert pool.wait_for(pool.submit("words", TEXT), "succeeded")


@pytest.mark.kills
def test_eight_deaths_while_the_supervisor_is_stopped_are_eight_recoveries(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(workers=8).start()
    wait_until(lambda: len(pool.worker_pids()) == 8, "eight workers")
    tasks = [pool.submit("block.fail", {"go": str(tmp_path / "never")}) for _ in range(8)]
    for task in tasks:
        pool.wait_for(task, "running")
    victims = pool.worker_pids()
    os.kill(pool.pid, signal.SIGSTOP)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in victims), "all eight are dead")
    assert [pool.task(task)["state"] for task in tasks] == ["running"] * 8
    os.kill(pool.pid, signal.SIGCONT)
    for task in tasks:
        reason = pool.wait_for(task, "failed")["failure_reason"]
        assert reason == "process exited before worker completion (SIGKILL)"
    wait_until(lambda: len(pool.worker_pids()) == 8, "eight replacements")


def test_term_drains(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    running = pool.submit("block.unknown", {"go": str(tmp_path / "go")})
    pool.wait_for(running, "running")
    waiting = pool.submit("words", TEXT)
    assert pool.process is not None
    pool.process.terminate()
    wait_until(lambda: "draining" in pool.log, "it drains")
    assert pool.task(running)["state"] == "running"
    (tmp_path / "go").touch()
    assert pool.process.wait(20) == 0
    assert _states(pool.database) == {running: "succeeded", waiting: "queued"}


def test_a_second_term_kills_what_runs_and_settles_it(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    running = pool.submit("block.unknown", {"go": str(tmp_path / "never")})
    pool.wait_for(running, "running")
    assert pool.process is not None
    pool.process.terminate()
    wait_until(lambda: "draining" in pool.log, "it drains")
    pool.process.terminate()
    assert pool.process.wait(20) == 0
    row = _rows(pool.database)[0]
    assert (row["state"], row["unknown_cause"]) == ("unknown", "shutdown")


def test_a_thousand_tasks_over_four_workers_run_once_each(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(workers=4).start()
    log = tmp_path / "log"
    ids = {pool.submit("words", {**TEXT, "log": str(log)}) for _ in range(1000)}
    wait_until(lambda: set(_states(pool.database).values()) == {"succeeded"}, "all have succeeded", 60)
    ran = [line.split()[1] for line in log.read_text().splitlines()]
    assert len(ran) == 1000
    assert set(ran) == ids


def test_with_one_worker_tasks_start_by_priority_then_time(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    log = tmp_path / "log"
    first = pool.submit("block.fail", {"go": str(tmp_path / "go")})
    pool.wait_for(first, "running")
    order = [3, 1, 2, 1, 3]
    ids = [pool.submit("words", {**TEXT, "log": str(log)}, priority=priority) for priority in order]
    (tmp_path / "go").touch()
    for id in ids:
        pool.wait_for(id, "succeeded")
    ran = [line.split()[1] for line in log.read_text().splitlines()]
    assert ran == [ids[1], ids[3], ids[2], ids[0], ids[4]]


def _pid_of(pool: Pool, task: str) -> int:
    def find() -> int | None:
        return next((w["pid"] for w in pool.get("/workers").body["workers"] if w["task"] == task), None)

    return wait_until(find, "a worker says that it has the task") or 0


def _rows(settings: db.Settings) -> list[dict[str, Any]]:
    connection = db.connect(settings, "test")
    driver = connection._driver
    rows = driver.run("select * from deadsure.tasks order by id")
    names = [column["name"] for column in driver.columns]
    connection.close()
    return [dict(zip(names, row, strict=True)) for row in rows]


def _states(settings: db.Settings) -> dict[str, str]:
    return {str(row["id"]): row["state"] for row in _rows(settings)}
