"""`deadsure prune`: what goes, what stays, and that nobody is disturbed."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pytest
from deadsure import Contract
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.cli.main import main
from deadsure.runtime import db
from deadsure.runtime.ids import uuid7
from deadsure.runtime.model import ExitProof, Outcome
from deadsure.runtime.store import cancel, pool, prune, reconcile, recover, submit
from deadsure.runtime.store.reconcile import Decision
from kit.aged import age, left, many, orphans
from kit.bank import new_bank
from kit.command import environment, start
from kit.pool import Pool, dsn_text
from kit.postgres import server_log
from kit.store import Store
from kit.wait import wait_until

SUCCEEDED = Outcome("succeeded", "{}")
NO_WAY_OUT = Contract(lookup=False, dedups_by_key=False, key_retention=1, settle_after=1)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run(store: Store, *words: str) -> Done:
    """The command, in this process: most of what it takes otherwise is the start of another Python."""
    out, err = io.StringIO(), io.StringIO()
    variables = environment({"DEADSURE_DATABASE_DSN": dsn_text(store.settings)})
    with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, variables, clear=True):
        code = main(["prune", "--older-than", *words])
    return Done(code, out.getvalue(), err.getvalue())


def said(store: Store, *words: str) -> str:
    """What a prune printed that had nothing to complain about."""
    done = run(store, *words)
    assert (done.code, done.err) == (0, ""), done
    return done.out.strip()


def finished(store: Store, kind: str = "plain", outcome: Outcome = SUCCEEDED) -> UUID:
    task = store.submit(kind)
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    assert worker.finish(claimed, outcome).finished is not None
    return task


def unknown(store: Store) -> UUID:
    task = store.submit()
    worker = store.worker()
    assert worker.claim() is not None
    recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    return task


def decided(store: Store, state: str) -> UUID:
    task = unknown(store)
    result = "{}" if state == "succeeded" else None
    version = store.row(task)["version"]
    reconcile.resolve(store.connection, Decision(uuid7(), task, version, state, "letter 7", "alice", result))  # type: ignore[arg-type]
    return task


def effect(store: Store, *, known: bool) -> UUID:
    """An effect that was done, and is known to be, or is not."""
    bank = new_bank(store, replace(NO_WAY_OUT, lookup=True) if known else None)
    task = bank.submit()
    assert bank.run() == "succeeded" if known else not bank.die(performed=True)
    return task


def canceled(store: Store) -> UUID:
    task = store.submit()
    assert cancel.cancel(store.connection, task) == "canceled"
    return task


def failed_by_deaths(store: Store) -> UUID:
    task = store.submit("harmless")
    for _ in range(3):
        worker = store.worker()
        assert worker.claim() is not None
        recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    return task


# --- what goes and what stays


def test_only_what_finished_long_ago_goes_and_all_of_it(store: Store) -> None:
    old = [
        finished(store),
        finished(store, "failing", Outcome("failed", reason="no")),
        canceled(store),
        failed_by_deaths(store),
        effect(store, known=True),
        decided(store, "succeeded"),
        decided(store, "failed"),
    ]
    gone = {age(store, task, made=40) for task in old}
    just_finished = age(store, decided(store, "canceled"), made=40, finished=1 / 1440)
    young = age(store, finished(store), made=20)
    stay = {just_finished, young}
    stay |= {age(store, task, made=40) for task in (unknown(store), effect(store, known=False))}
    running = store.submit()
    assert store.worker().claim() is not None
    stay |= {age(store, running, made=40), age(store, store.submit(), made=40)}

    assert left(store) == gone | stay
    before = store.query("select * from deadsure.tasks order by id")
    assert said(store, "30", "--dry-run").startswith(f"would remove {len(gone)} tasks,")
    assert store.query("select * from deadsure.tasks order by id") == before
    assert said(store, "30").startswith(f"removed {len(gone)} tasks,")
    assert left(store) == stay
    assert orphans(store) == {}
    assert [row["task_id"] for row in store.query("select task_id from deadsure.decisions")] == [just_finished]
    assert said(store, "30").startswith("removed 0 tasks,")
    assert store.query("select * from deadsure.tasks order by id") == [r for r in before if r["id"] in stay]


def test_a_key_of_a_pruned_task_makes_a_new_task(store: Store) -> None:
    def asked() -> submit.Accepted:
        (verdict,) = submit.submit(store.connection, [submit.Submission(uuid7(), "plain", "{}", key="invoice-7")])
        assert isinstance(verdict, submit.Accepted)
        return verdict

    first = asked().task.id
    assert asked().replayed
    assert cancel.cancel(store.connection, first) == "canceled"
    old = age(store, first, made=40)
    assert asked().task.id == old
    said(store, "30")
    again = asked()
    assert not again.replayed
    assert again.task.id != old
    assert again.task.state == "queued"


def test_what_a_rolled_back_claim_left_in_ready_goes_too(store: Store) -> None:
    task = store.submit()
    with store.connection.transaction():
        row = store.query("select * from deadsure.ready where id = :id", id=task)[0]
        cancel.cancel(store.connection, task)
    store.query("insert into deadsure.ready select :queue, :priority, cast(:run_at as timestamptz), :id, 'plain'",
                queue="default", priority=0, run_at=row["run_at"], id=task)  # type: ignore[arg-type]  # fmt: skip
    age(store, task, made=40)
    said(store, "30")
    assert (left(store), store.query("select * from deadsure.ready")) == (set(), [])


def test_a_task_that_somebody_holds_is_passed_over_and_nobody_waits(store: Store) -> None:
    held, free = (age(store, finished(store), made=40) for _ in range(2))
    horizon = prune.horizon(store.connection, 30)
    other = store.connect()
    with other.transaction():
        other._driver.run("select from deadsure.tasks where id = :id for key share", id=str(held))
        assert prune.remove_tasks(store.connection, horizon, [held, free], lambda kept: pytest.fail(str(kept))) == 1
    assert left(store) == {held}


def removed_now(store: Store, task: UUID) -> int:
    """How many went, of this one, which was over a moment ago."""
    horizon = prune.horizon(store.connection, 0)
    return prune.remove_tasks(store.connection, horizon, [task], lambda kept: pytest.fail(str(kept)))


def test_a_task_that_an_open_promotion_puts_in_ready_stays_until_it_can_go_with_it(store: Store) -> None:
    task = store.submit(run_at=datetime.now(UTC) + timedelta(hours=1))
    for table in ("scheduled", "tasks"):
        store.query(f"update deadsure.{table} set run_at = '2020-01-01'")
    promotes = store.connect()
    with promotes.transaction():
        assert pool.promote(promotes) == 1
        assert cancel.cancel(store.connection, task) == "canceled"
        assert removed_now(store, task) == 0
    assert len(store.query("select from deadsure.ready")) == 1
    assert removed_now(store, task) == 1
    assert (left(store), orphans(store)) == (set(), {})


def test_a_task_whose_row_in_ready_a_claim_holds_stays_until_it_can_go_with_it(store: Store) -> None:
    task = store.submit()
    claims = store.connect()
    with claims.transaction():
        claims._driver.run("select from deadsure.ready for update")
        assert cancel.cancel(store.connection, task) == "canceled"
        assert removed_now(store, task) == 0
    assert removed_now(store, task) == 1
    assert (left(store), orphans(store)) == (set(), {})


# --- a row of somebody else's that refers to a task


@pytest.mark.parametrize("form", ["", "on delete restrict", "deferrable initially deferred"])
def test_a_task_that_a_table_of_the_users_refers_to_is_kept_and_told_and_all_others_go(store: Store, form: str) -> None:
    many(store, 200)
    kept = sorted(left(store))[len(left(store)) // 3]
    store.query(f"create table shop (task uuid references deadsure.tasks {form})")
    store.query("insert into shop values (:id)", id=kept)
    done = run(store, "30")
    assert done.code == 1
    assert done.out.startswith("removed 199 tasks,")
    named, total = done.err.splitlines()
    assert named.startswith(f"deadsure: kept {kept}: ")
    assert 'on table "shop"' in named
    assert "1 tasks could not be removed" in total
    assert left(store) == {kept}
    assert orphans(store) == {}
    assert len(store.query("select from deadsure.events")) == len(store.query("select from deadsure.decisions")) == 1
    store.query("delete from shop")
    assert said(store, "30").startswith("removed 1 tasks,")


def test_a_check_of_a_foreign_key_without_an_index_is_never_compiled(store: Store) -> None:
    """Before PostgreSQL 18 it would be, anew for each row: 0.4 s a task instead of 0.1 ms."""
    assert store.query("select current_setting('jit') as jit") == [{"jit": "off"}]


# --- several at once, and killed


def test_killed_in_the_middle_and_run_on_two_hosts_at_once_it_removes_whole_tasks_and_all_of_them(
    store: Store, tmp_path: Path
) -> None:
    many(store, 1600)
    in_the_way = sorted(left(store))[834]
    store.query("create table shop (task uuid references deadsure.tasks on delete cascade)")
    store.query("insert into shop values (:id)", id=in_the_way)
    user = store.connect()
    with user.transaction():
        user._driver.run("select from shop for update")
        env = {"DEADSURE_DATABASE_DSN": dsn_text(store.settings)}
        victim = start("prune", "--older-than", "30", env=env, log=tmp_path / "log")
        wait_until(lambda: store.waits_for_a_lock("deadsure prune"), "it stands in the middle of a removal")
        victim.kill()
        victim.wait(20)
    wait_until(lambda: not store.query("select from pg_stat_activity where application_name = 'deadsure prune'"), "")
    assert orphans(store) == {}
    remaining = len(left(store))
    assert 0 < remaining < 1600
    assert len(store.query("select from deadsure.events")) == len(store.query("select from deadsure.decisions"))
    assert len(store.query("select from deadsure.events")) == remaining

    hosts = [start("prune", "--older-than", "30", env=env, log=tmp_path / f"log-{n}") for n in (1, 2)]
    assert [host.wait(60) for host in hosts] == [0, 0]
    removed = [int((tmp_path / f"log-{n}").read_text().split()[1]) for n in (1, 2)]
    assert sum(removed) == remaining
    assert (left(store), orphans(store)) == (set(), {})


def test_a_running_pool_and_its_claims_are_not_disturbed(
    new_pool: Callable[..., Pool], store: Store, server: EmbeddedPostgres, tmp_path: Path
) -> None:
    before = len(server_log(server))
    many(store, 1000)
    running = new_pool(workers=2).start()
    old = left(store)
    tasks = [running.submit("note", {"log": str(tmp_path / "log")}) for _ in range(40)]
    env = {"DEADSURE_DATABASE_DSN": dsn_text(store.settings)}
    hosts = [start("prune", "--older-than", "30", env=env, log=tmp_path / f"log-{n}") for n in (1, 2)]
    tasks += [running.submit("note", {"log": str(tmp_path / "log")}) for _ in range(40)]
    assert [host.wait(60) for host in hosts] == [0, 0]
    for task in tasks:
        running.wait_for(task, "succeeded")
    assert left(store) & old == set()
    assert orphans(store) == {}
    assert "deadlock" not in server_log(server)[before:]
    ended = [line.split()[1] for line in (tmp_path / "log").read_text().splitlines() if line.startswith("end ")]
    assert sorted(ended) == sorted(tasks)


# --- slots and incarnations


def test_slots_and_incarnations_that_ended_long_ago_go_and_those_of_the_living_stay(store: Store) -> None:
    def slot(incarnation: UUID, *, days: float, ended: bool) -> UUID:
        made = store.worker(incarnation).slot.id
        if ended:
            recover.recover_worker(store.connection, made, ExitProof("SIGKILL"))
        store.query("update deadsure.slots set started_at = started_at - make_interval(secs => :age) where slot = :id",
                    age=days * 86400, id=made)  # fmt: skip
        return made

    def ended_before(days: float) -> UUID:
        made = store.new_incarnation()
        slot(made, days=50, ended=True)
        assert pool.end_incarnation(store.connection, made)
        store.query("update deadsure.incarnations set ended_at = ended_at - make_interval(secs => :age)"
                    " where incarnation = :id", age=days * 86400, id=made)  # fmt: skip
        return made

    long_ago, lately = ended_before(40), ended_before(20)
    succeeded_by_another = slot(store.incarnation, days=50, ended=True)
    last_one_replaced_lately = slot(store.incarnation, days=45, ended=True)
    of_today = slot(store.incarnation, days=0, ended=True)
    alive = slot(store.incarnation, days=0, ended=False)
    # It cannot come to this, since what ends a slot settles its task; but a task must never lose its owner's row.
    holding, task = ended_before(40), store.submit()
    worker = store.worker(store.incarnation)
    assert worker.claim() is not None
    store.query("update deadsure.slots set ended = true, incarnation = :i where slot = :id", i=holding,
                id=worker.slot.id)  # fmt: skip

    assert said(store, "30", "--dry-run") == "would remove 0 tasks, 3 slots, 2 incarnations"
    assert said(store, "30") == "removed 0 tasks, 3 slots, 1 incarnations"
    assert store.row(task)["state"] == "running"
    incarnations = {row["incarnation"] for row in store.query("select incarnation from deadsure.incarnations")}
    assert incarnations == {store.incarnation, lately, holding}
    assert long_ago not in incarnations
    slots = {row["slot"] for row in store.query("select slot from deadsure.slots where incarnation = :i",
                                                i=store.incarnation)}  # fmt: skip
    assert slots == {last_one_replaced_lately, of_today, alive}
    assert succeeded_by_another not in slots
    # Nothing of the last hour, whatever is asked for: a recovery whose answer was lost looks at its slots again.
    assert said(store, "0") == "removed 0 tasks, 1 slots, 1 incarnations"
    assert {last_one_replaced_lately, of_today, alive} == slots


# --- the command


@pytest.mark.parametrize("days", ["-1", "nan", "36526"])
def test_an_age_that_is_none_is_2(days: str) -> None:
    assert main(["prune", f"--older-than={days}"]) == 2


def test_without_the_schema_of_this_version_nothing_is_removed(store: Store) -> None:
    many(store, 1)
    store.query("delete from deadsure.migrations where number > 1")
    done = run(store, "30")
    assert done.code == 1
    assert "the schema is older than this version" in done.err
    assert len(left(store)) == 1


def test_a_page_of_the_walk_reads_no_more_than_itself(database: db.Settings, store: Store) -> None:
    many(store, 5000)
    store.connection._driver.run("analyze deadsure.tasks")
    text = prune._TASKS_PAGE.text
    for name, type in (("below", "uuid"), ("at", "timestamptz"), ("after", "uuid"), ("scan", "integer")):
        text = text.replace(f"cast(:{name} as {type})", f"${['below', 'at', 'after', 'scan'].index(name) + 1}")
    driver = store.connection._driver
    driver.run(f"prepare page (uuid, timestamptz, uuid, integer) as {text}")
    driver.run("set plan_cache_mode = force_generic_plan")
    some = "'00000000-0000-0000-0000-000000000000'"
    plan = "\n".join(row[0] for row in driver.run(f"explain execute page({some}, now(), {some}, 500)") or [])
    assert "Index Scan using tasks_pkey" in plan
    assert "Sort" not in plan
