"""Starting: nothing is claimed before the previous pool's recovery is committed, and only a lock taken recovers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db
from kit.pool import Pool
from kit.store import Store
from kit.wait import wait_until

NewPool = Callable[..., Pool]
QUICK = {"DATABASE_STATEMENT_TIMEOUT": "1"}


def test_a_pool_that_cannot_commit_its_recovery_claims_nothing_until_it_can(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    pool = new_pool(options=QUICK).start()
    running = pool.submit("block.fail", {"go": str(tmp_path / "never")})
    pool.wait_for(running, "running")
    waiting = pool.submit("words", {"text": "a b"})
    pool.kill_all()
    holder = store.connect("holder")
    with holder.transaction():
        holder._driver.run("select 1 from deadsure.tasks where state = 'running' for update")
        pool.start(ready=False)
        wait_until(lambda: pool.get("/livez").status == 200, "it lives")
        wait_until(lambda: pool.log.count("the pool cannot start yet") >= 2, "the recovery was refused twice")
        assert pool.get("/readyz").status == 503
        assert pool.worker_pids() == []
        assert (store.row(UUID(waiting))["state"], store.row(UUID(running))["state"]) == ("queued", "running")
    wait_until(pool.is_ready, "ready once the recovery is committed")
    assert pool.task(running)["state"] == "failed"
    pool.wait_for(waiting, "succeeded")


def test_a_pool_started_without_a_database_waits_for_it(
    new_pool: NewPool, server: EmbeddedPostgres, database: db.Settings
) -> None:
    pool = new_pool()
    server.stop()
    try:
        pool.start(ready=False)
        wait_until(lambda: pool.get("/livez").status == 200, "it lives")
        assert pool.get("/readyz").status == 503
        assert pool.worker_pids() == []
    finally:
        server.start()
    wait_until(pool.is_ready, "ready once the database is there", 30)
    pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")


def test_a_second_supervisor_on_the_same_lock_waits_and_recovers_nothing(
    new_pool: NewPool, tmp_path: Path
) -> None:
    first = new_pool().start()
    running = first.submit("block.fail", {"go": str(tmp_path / "go")})
    first.wait_for(running, "running")
    second = new_pool(runtime_dir=first.runtime_dir).start(ready=False)
    wait_until(lambda: "waiting for the previous pool's processes to end" in second.log, "the second one waits")
    assert second.get("/readyz").status == 503
    assert first.task(running)["state"] == "running"
    (tmp_path / "go").touch()
    first.wait_for(running, "succeeded")
    assert first.stop() == 0
    wait_until(second.is_ready, "the second one takes over")


def test_a_killed_supervisor_takes_its_children_with_it_and_the_port_is_free(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(workers=4).start()
    running = pool.submit("block.fail", {"go": str(tmp_path / "never")})
    pool.wait_for(running, "running")
    os.kill(pool.pid, signal.SIGKILL)
    assert pool.process is not None
    pool.process.wait(10)
    pool.start()
    assert pool.task(running)["failure_reason"] == "process exited before worker completion"


def test_a_dead_api_child_is_replaced_and_disturbs_nobody(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    running = pool.submit("block.unknown", {"go": str(tmp_path / "go")})
    pool.wait_for(running, "running")
    (api,) = set(pool.children()) - set(pool.worker_pids())
    os.kill(api, signal.SIGKILL)
    wait_until(lambda: pool.get("/livez").status == 200 and api not in pool.children(), "another api child answers")
    assert pool.task(running)["state"] == "running"
    (tmp_path / "go").touch()
    assert pool.wait_for(running, "succeeded")["attempts"] == 1


def test_a_scheduled_task_runs_when_its_time_has_come(new_pool: NewPool, store: Store) -> None:
    pool = new_pool().start()
    soon = store.query("select to_char(clock_timestamp() + interval '1.5 s', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') as t")
    task = pool.submit("words", {"text": "a"}, run_at=soon[0]["t"])
    assert store.query("select count(*) as n from deadsure.scheduled") == [{"n": 1}]
    assert pool.task(task)["state"] == "queued"
    done = pool.wait_for(task, "succeeded")
    assert done["started_at"] >= done["run_at"]


def test_a_lost_lease_kills_the_workers_and_the_pool_comes_back_as_a_new_incarnation(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    pool = new_pool(options={"POOL_LEASE": "3", "POOL_RENEW_EVERY": "0.5"}).start()
    running = pool.submit("block.unknown", {"go": str(tmp_path / "never")})
    pool.wait_for(running, "running")
    before = pool.worker_pids()
    store.query(
        "update deadsure.incarnations set ended_at = clock_timestamp(), ended_by = 'lease' where ended_at is null"
        " and pool = 'default' and host <> 'here'"
    )
    task = pool.wait_for(running, "unknown")
    assert (task["unknown"]["cause"], task["unknown"]["proof"]) == ("lease_expired", "exit")
    wait_until(lambda: pool.get("/readyz").status == 200 and pool.worker_pids() != before, "a new incarnation works")
    pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")

