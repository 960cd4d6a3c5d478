"""Claim and finish: one statement, guarded by slot, token, fence, owner and state."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from deadsure.runtime import sql
from deadsure.runtime.errors import StatementRefused
from deadsure.runtime.model import Claimed, ExitProof, Outcome, Refusal, Step, Wanted
from deadsure.runtime.states import State
from deadsure.runtime.store import cancel, hot, pool, recover
from kit.store import KINDS, WANTED, Store, WorkerRow
from kit.wait import wait_until

DONE = Outcome("succeeded", result='{"words": 2, "bytes": 9, "runes": 9}')


def test_of_two_callers_released_by_one_gate_exactly_one_gets_the_task(store: Store) -> None:
    workers = [store.worker(), store.worker()]
    isolation = store.query("show transaction_isolation")[0]
    assert isolation == {"transaction_isolation": "read committed"}
    for _ in range(30):
        task = store.submit()
        got = _race(workers)
        assert [claimed.id for claimed in got if claimed] == [task]
        assert got.count(None) == 1
        assert store.row(task)["attempts"] == 1


def _race(workers: list[WorkerRow]) -> list[Claimed | None]:
    """What each of them got; raises what any of them raised."""
    gate = threading.Barrier(len(workers))

    def run(worker: WorkerRow) -> Claimed | None:
        gate.wait(10)
        return worker.claim()

    with ThreadPoolExecutor(len(workers)) as threads:
        return [future.result(20) for future in [threads.submit(run, worker) for worker in workers]]


def test_a_finish_commits_state_and_result_together(store: Store) -> None:
    task, worker = store.submit(), store.worker()
    claimed = worker.claim()
    assert claimed is not None
    assert worker.finish(claimed, DONE).finished is State.SUCCEEDED
    row = store.row(task)
    assert (row["state"], row["result"]) == ("succeeded", json.loads(DONE.result or ""))
    assert row["owner"] is None
    assert row["finished_at"] is not None


def test_a_failure_keeps_its_reason_and_no_result(store: Store) -> None:
    task, worker = store.submit(), store.worker()
    claimed = worker.claim()
    assert claimed is not None
    worker.finish(claimed, Outcome("failed", result='{"words": 99}', reason="ValueError: no"))
    row = store.row(task)
    assert (row["state"], row["failure_reason"], row["result"]) == ("failed", "ValueError: no", None)


def test_what_a_rolled_back_transaction_had_finished_is_running_and_can_be_finished_once(store: Store) -> None:
    task, worker = store.submit(), store.worker()
    claimed = worker.claim()
    assert claimed is not None

    def finish_wrongly_and_fail() -> None:
        with worker.connection.transaction():
            wrong = hot.finish(worker.connection, worker.slot, claimed, Outcome("succeeded", result='{"words": 99}'))
            assert wrong.finished is State.SUCCEEDED
            worker.connection.run(sql.Statement("division", "select 1/0"))

    with pytest.raises(StatementRefused, match="22012"):
        finish_wrongly_and_fail()
    row = store.row(task)
    assert (row["state"], row["result"]) == ("running", None)

    assert worker.finish(claimed, DONE).finished is State.SUCCEEDED
    again = worker.finish(claimed, Outcome("succeeded", result='{"words": 7}'))
    assert (again.finished, again.refused) == (None, Refusal.ALREADY_FINISHED)
    assert store.row(task)["result"] == {"words": 2, "bytes": 9, "runes": 9}


def test_a_finish_of_a_task_that_never_existed_is_another_refusal(store: Store) -> None:
    store.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    store.query("delete from deadsure.tasks where id = :id", id=claimed.id)
    assert worker.finish(claimed, DONE).refused is Refusal.NO_SUCH_TASK


def test_a_stale_fence_cannot_finish_and_claims_nothing(store: Store) -> None:
    task, waiting = store.submit(), store.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    store.query("update deadsure.tasks set fence = fence + 1 where id = :id", id=task)
    step = hot.finish_and_claim(worker.connection, worker.slot, claimed, DONE, WANTED)
    assert (step.finished, step.claimed, step.refused) == (None, None, Refusal.NOT_YOURS)
    assert store.row(task)["state"] == "running"
    assert store.row(waiting)["state"] == "queued"


def test_a_foreign_owner_cannot_finish_although_the_fence_is_the_same(store: Store) -> None:
    task = store.submit()
    owner, other = store.worker(), store.worker()
    claimed = owner.claim()
    assert claimed is not None
    assert other.finish(claimed, DONE).refused is Refusal.NOT_YOURS
    assert store.row(task)["state"] == "running"


def test_a_worker_whose_slot_has_ended_can_neither_finish_nor_claim(store: Store) -> None:
    task, waiting = store.submit("plain"), store.submit("plain")
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    step = hot.finish_and_claim(worker.connection, worker.slot, claimed, DONE, WANTED)
    assert (step.refused, step.claimed) == (Refusal.SLOT_ENDED, None)
    assert store.row(task)["state"] == "unknown"
    assert store.row(waiting)["state"] == "queued"


def test_a_late_copy_of_a_statement_whose_token_has_moved_changes_nothing(store: Store) -> None:
    first, second = store.submit(), store.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    before = worker.slot
    assert worker.finish(claimed, DONE).refused is None
    late = hot.finish_and_claim(worker.connection, before, claimed, DONE, WANTED)
    late_claim = hot.claim(worker.connection, before, WANTED)
    assert late.refused is late_claim.refused is Refusal.SLOT_ENDED
    assert store.row(first)["version"] == 3
    assert (store.row(second)["state"], store.row(second)["attempts"]) == ("queued", 0)


def test_a_late_copy_of_a_statement_whose_slot_has_ended_changes_nothing(store: Store) -> None:
    task = store.submit("harmless")
    worker = store.worker()
    recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    assert hot.claim(worker.connection, worker.slot, WANTED).refused is Refusal.SLOT_ENDED
    assert store.row(task)["state"] == "queued"


def test_a_worker_whose_lease_is_over_claims_nothing_but_may_still_finish(store: Store) -> None:
    task = store.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    waiting = store.submit()
    store.query("update deadsure.incarnations set lease_until = clock_timestamp() - interval '1 second'")
    step = hot.finish_and_claim(worker.connection, worker.slot, claimed, DONE, WANTED)
    assert (step.finished, step.claimed, step.trusted) == (State.SUCCEEDED, None, False)
    assert store.row(task)["state"] == "succeeded"
    assert store.row(waiting)["state"] == "queued"


def test_a_slot_names_what_its_worker_holds_and_nothing_else(store: Store) -> None:
    task = store.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    assert _held(store, worker.slot.id) == ([task], [1])
    worker.finish(claimed, DONE)
    assert _held(store, worker.slot.id) == ([], [])


def _held(store: Store, slot: object) -> tuple[object, object]:
    row = store.query("select task_ids, fences from deadsure.slots where slot = :slot", slot=slot)[0]  # type: ignore[arg-type]
    return row["task_ids"], row["fences"]


def test_tasks_are_claimed_in_the_order_priority_then_run_at(store: Store) -> None:
    late = store.submit(priority=5)
    first = store.submit(priority=5)
    urgent = store.submit(priority=-1)
    store.query("update deadsure.ready set run_at = run_at - interval '1 hour' where id = :id", id=first)
    store.query("update deadsure.tasks set run_at = run_at - interval '1 hour' where id = :id", id=first)
    worker = store.worker()
    claimed = [worker.claim() for _ in range(3)]
    assert [task and task.id for task in claimed] == [urgent, first, late]


def test_queues_are_tried_in_the_configured_order(store: Store) -> None:
    low, high = store.submit(queue="low", priority=-9), store.submit(queue="high", priority=9)
    worker = store.worker()
    wanted = Wanted.from_queues(("high", "low"), KINDS)
    assert [task and task.id for task in (worker.claim(wanted), worker.claim(wanted))] == [high, low]


def test_a_worker_takes_only_kinds_it_has(store: Store) -> None:
    store.submit("failing")
    mine = store.submit("plain")
    worker = store.worker()
    wanted = Wanted.from_queues(("default",), KINDS[:1])
    claimed = worker.claim(wanted)
    assert claimed is not None
    assert claimed.id == mine
    assert worker.claim(wanted) is None


def test_a_left_over_row_of_a_canceled_task_is_dropped_and_not_run(store: Store) -> None:
    task = store.submit()
    row = store.query("select queue, priority, run_at, kind from deadsure.ready")[0]
    cancel.cancel(store.connection, task, "test")
    assert store.row(task)["state"] == "canceled"
    store.query(
        "insert into deadsure.ready values (:queue, :priority, :run_at, :id, :kind)",
        id=task, **row,  # type: ignore[arg-type]
    )
    worker = store.worker()
    step = hot.claim(worker.connection, worker.slot, WANTED)
    assert (step.claimed, step.stale) == (None, True)
    assert store.row(task)["state"] == "canceled"
    assert store.query("select * from deadsure.ready") == []


@pytest.mark.parametrize(
    ("kind", "outcome", "state"),
    [
        ("plain", DONE, State.SUCCEEDED),
        ("failing", DONE, State.CANCELED),
        ("harmless", DONE, State.CANCELED),
        ("plain", Outcome("canceled", reason="Canceled"), State.CANCELED),
        ("plain", Outcome("failed", reason="no"), State.FAILED),
    ],
)
def test_what_a_cancel_request_makes_of_a_finish(store: Store, kind: str, outcome: Outcome, state: State) -> None:
    task, worker = store.submit(kind), store.worker()
    claimed = worker.claim()
    assert claimed is not None
    cancel.cancel(store.connection, task, "test")
    assert store.row(task)["state"] == "running"
    assert worker.finish(claimed, outcome).finished is state


def test_canceled_without_a_request_is_a_failure(store: Store) -> None:
    task, worker = store.submit(), store.worker()
    claimed = worker.claim()
    assert claimed is not None
    worker.finish(claimed, Outcome("canceled"))
    assert store.row(task)["failure_reason"] == "raised Canceled, but no cancel was requested"


def test_a_refused_finish_leaves_the_slot_as_it_is(store: Store) -> None:
    task, worker = store.submit(), store.worker()
    claimed = worker.claim()
    assert claimed is not None
    store.query("update deadsure.tasks set fence = fence + 1 where id = :id", id=task)
    before = store.query("select * from deadsure.slots")
    assert hot.finish_and_claim(worker.connection, worker.slot, claimed, DONE, WANTED).refused is Refusal.NOT_YOURS
    assert store.query("select * from deadsure.slots") == before


def test_of_two_copies_of_one_statement_at_once_one_does_nothing(store: Store) -> None:
    store.submit(), store.submit()
    worker, copy = store.worker(), store.connect("copy")
    late: list[Step] = []
    with worker.connection.transaction():
        first = hot.claim(worker.connection, worker.slot, WANTED)
        sending = threading.Thread(target=lambda: late.append(hot.claim(copy, worker.slot, WANTED)))
        sending.start()
        wait_until(lambda: store.waits_for_a_lock("copy"), "the copy waits for the slot")
    sending.join(10)
    assert first.claimed is not None
    assert [(step.refused, step.claimed) for step in late] == [(Refusal.SLOT_ENDED, None)]
    assert _held(store, worker.slot.id) == ([first.claimed.id], [1])


def test_a_claim_passes_over_a_row_that_somebody_holds(store: Store) -> None:
    first, second = store.submit(), store.submit()
    worker, holder = store.worker(), store.connect()
    worker.connection.script("set lock_timeout = '300ms'")
    with holder.transaction():
        holder._driver.run("select 1 from deadsure.ready where id = :id for update", id=first)
        claimed = worker.claim()
    assert claimed is not None
    assert claimed.id == second


def test_a_scheduled_row_whose_task_is_no_longer_queued_just_leaves(store: Store) -> None:
    task = store.submit()
    cancel.cancel(store.connection, task, "test")
    store.query("insert into deadsure.scheduled values (clock_timestamp(), :id)", id=task)
    assert pool.promote(store.connection) == 0
    assert store.query("select id from deadsure.ready union all select id from deadsure.scheduled") == []


@pytest.mark.parametrize("spot", ["known", "not known"])
def test_a_slot_that_somebody_writes_meanwhile_is_found_again(store: Store, spot: str) -> None:
    """The statement waits for the other writer, and must not claim without naming the task in the new version."""
    worker, other = store.worker(), store.connect()
    if spot == "known":
        assert worker.claim() is None
    task = store.submit()
    with ThreadPoolExecutor(1) as pool, other.transaction():
        other._driver.run("update deadsure.slots set number = 7 where slot = :slot", slot=str(worker.slot.id))
        claiming = pool.submit(worker.claim)
        wait_until(lambda: store.waits_for_a_lock("test"), "it waits")
    claimed = claiming.result(10)
    named = store.query("select task_ids from deadsure.slots where slot = :slot", slot=worker.slot.id)[0]["task_ids"]
    assert (claimed and claimed.id, named) == (task, [task])
