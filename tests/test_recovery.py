"""Recovery: what becomes of a dead worker's task, by its kind's declaration, and only once."""

from __future__ import annotations

import inspect
import threading
from dataclasses import replace
from uuid import uuid4

import pytest
from deadsure.runtime import db
from deadsure.runtime.model import Claimed, ExitProof, LockIdentity, LockProof, Outcome, Refusal
from deadsure.runtime.states import State
from deadsure.runtime.store import cancel, recover
from kit.store import LOCK, Store, WorkerRow
from kit.wait import wait_until

KILLED = ExitProof("SIGKILL", phase="handling")
DONE = Outcome("succeeded", result="1")


def _held(store: Store, kind: str) -> tuple[WorkerRow, Claimed]:
    store.submit(kind)
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    return worker, claimed


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [
        ("plain", "unknown", None),
        ("failing", "failed", "process exited before worker completion (SIGKILL)"),
        ("harmless", "queued", None),
    ],
)
def test_a_dead_workers_task_is_settled_by_its_on_death(store: Store, kind: str, state: str, reason: str) -> None:
    worker, claimed = _held(store, kind)
    settled = recover.recover_worker(store.connection, worker.slot.id, KILLED)
    row = store.row(claimed.id)
    assert [task.id for task in settled] == [claimed.id]
    assert (row["state"], row["failure_reason"], row["result"]) == (state, reason, None)
    assert (row["fence"], row["owner"]) == (claimed.fence + 1, None)
    assert worker.finish(claimed, DONE).refused is Refusal.SLOT_ENDED


def test_an_unknown_task_carries_its_evidence(store: Store) -> None:
    worker, claimed = _held(store, "plain")
    recover.recover_worker(store.connection, worker.slot.id, KILLED)
    row = store.row(claimed.id)
    evidence = (row["unknown_cause"], row["unknown_proof"], row["unknown_signal"], row["unknown_phase"])
    assert evidence == ("worker_died", "exit", "SIGKILL", "handling")
    assert [r["id"] for r in store.query("select id from deadsure.unknowns")] == [claimed.id]
    event = store.query("select event, detail from deadsure.events where task_id = :id", id=claimed.id)
    assert len(event) == 1
    assert event[0]["detail"]["to"] == "unknown"  # type: ignore[index]


def test_a_repeated_recovery_settles_and_tells_nothing_twice(store: Store) -> None:
    worker, claimed = _held(store, "harmless")
    first = recover.recover_worker(store.connection, worker.slot.id, KILLED)
    assert [task.id for task in first] == [claimed.id]
    assert recover.recover_worker(store.connection, worker.slot.id, KILLED) == first
    assert store.row(claimed.id)["fence"] == claimed.fence + 1
    assert len(store.query("select 1 as one from deadsure.events")) == 1
    assert len(store.query("select 1 as one from deadsure.ready")) == 1


def test_a_finished_task_is_not_touched(store: Store) -> None:
    worker, claimed = _held(store, "failing")
    worker.finish(claimed, DONE)
    assert recover.recover_worker(store.connection, worker.slot.id, KILLED) == []
    assert store.row(claimed.id)["state"] == "succeeded"


def test_a_requeued_task_spends_its_budget_and_its_reason_names_the_deaths(store: Store) -> None:
    task = store.submit("harmless")
    for signal in ("SIGSEGV", "SIGKILL", "SIGABRT"):
        worker = store.worker()
        claimed = worker.claim()
        assert claimed is not None
        assert claimed.id == task
        recover.recover_worker(store.connection, worker.slot.id, ExitProof(signal))
    row = store.row(task)
    assert (row["state"], row["attempts"]) == ("failed", 3)
    assert row["failure_reason"] == (
        "process exited before worker completion (SIGABRT); all 3 attempts are spent, earlier deaths: SIGSEGV, SIGKILL"
    )
    assert store.worker().claim() is None


@pytest.mark.parametrize(("kind", "state"), [("plain", "unknown"), ("failing", "failed"), ("harmless", "canceled")])
def test_a_cancel_request_survives_the_death(store: Store, kind: str, state: str) -> None:
    worker, claimed = _held(store, kind)
    cancel.cancel(store.connection, claimed.id, "test")
    recover.recover_worker(store.connection, worker.slot.id, KILLED)
    row = store.row(claimed.id)
    assert (row["state"], row["cancel_requested"]) == (state, True)
    assert store.query("select * from deadsure.ready") == []


def test_a_claim_that_lands_while_the_recovery_waits_for_the_slot_is_settled(store: Store) -> None:
    task, worker = store.submit("failing"), store.worker()
    settled: list[object] = []
    with worker.connection.transaction():
        claimed = worker.claim()
        other = store.connect("recoverer")
        recovering = threading.Thread(
            target=lambda: settled.extend(recover.recover_worker(other, worker.slot.id, KILLED))
        )
        recovering.start()
        wait_until(lambda: store.waits_for_a_lock("recoverer"), "the recovery waits for the slot's lock")
    recovering.join(10)
    assert claimed is not None
    assert len(settled) == 1
    assert store.row(task)["state"] == "failed"


def test_taking_the_lock_recovers_exactly_the_incarnations_that_held_it(store: Store) -> None:
    worker, claimed = _held(store, "failing")
    elsewhere = LockIdentity(LOCK.id, LOCK.device, 3, LOCK.boot_id)
    other = store.worker(store.new_incarnation(lock=elsewhere))
    store.submit("failing")
    theirs = other.claim()
    assert theirs is not None
    settled = recover.recover_pool(store.connection, "default", uuid4(), LockProof(LOCK))
    assert [task.id for task in settled] == [claimed.id]
    assert store.row(claimed.id)["failure_reason"] == "process exited before worker completion"
    assert store.row(theirs.id)["state"] == "running"
    assert other.finish(theirs, DONE).finished is State.SUCCEEDED
    assert worker.finish(claimed, DONE).refused is Refusal.SLOT_ENDED
    assert recover.recover_pool(store.connection, "default", uuid4(), LockProof(LOCK)) == []


def test_there_is_no_recovery_without_a_proof() -> None:
    for function in (recover.recover_worker, recover.recover_pool):
        proof = inspect.signature(function).parameters["proof"]
        assert proof.default is inspect.Parameter.empty


def test_connecting_alone_recovers_nothing(store: Store, database: db.Settings) -> None:
    _, claimed = _held(store, "failing")
    db.connect(database, "passer-by").close()
    assert store.row(claimed.id)["state"] == "running"


@pytest.mark.parametrize("differs", ["pool", "id", "device", "inode", "boot_id"])
def test_a_lock_that_differs_in_anything_proves_nothing(store: Store, differs: str) -> None:
    worker, claimed = _held(store, "failing")
    another = {"pool": {}, "id": {"id": uuid4()}, "boot_id": {"boot_id": "another"}}.get(differs, {differs: 99})
    pool = "another" if differs == "pool" else "default"
    assert recover.recover_pool(store.connection, pool, uuid4(), LockProof(replace(LOCK, **another))) == []
    assert worker.finish(claimed, DONE).finished is State.SUCCEEDED


def test_a_pool_that_has_the_lock_does_not_recover_itself(store: Store) -> None:
    worker, claimed = _held(store, "failing")
    assert recover.recover_pool(store.connection, "default", store.incarnation, LockProof(LOCK)) == []
    assert worker.finish(claimed, DONE).finished is State.SUCCEEDED


def test_a_repeated_recovery_leaves_alone_who_has_the_task_now(store: Store) -> None:
    dead, claimed = _held(store, "harmless")
    recover.recover_worker(store.connection, dead.slot.id, KILLED)
    next_one = store.worker()
    again = next_one.claim()
    assert again is not None
    before = store.row(claimed.id)
    assert before["state"] == "running"
    recover.recover_worker(store.connection, dead.slot.id, KILLED)
    assert store.row(claimed.id) == before
    assert next_one.finish(again, DONE).finished is State.SUCCEEDED
