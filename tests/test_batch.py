"""Claiming and finishing many at once: which kinds, in which order, and every guard of the single form."""

from __future__ import annotations

import threading
from uuid import UUID

import msgspec
import pytest
from deadsure.runtime.errors import StatementRefused
from deadsure.runtime.model import Claimed, ExitProof, Kind, Outcome, Refusal, Wanted
from deadsure.runtime.states import OnDeath, State
from deadsure.runtime.store import batch, cancel, hot, pool, recover
from deadsure.runtime.store.batch import Done, ManyStep
from kit.store import KINDS, WANTED, Store, WorkerRow
from kit.wait import wait_until

DONE = Outcome("succeeded", result="1")
NOWHERE = hot.NOWHERE


class Batcher:
    """A worker that works in batches."""

    def __init__(self, store: Store) -> None:
        self.row: WorkerRow = store.worker()

    def step(
        self,
        done: list[Done] | None = None,
        kept: list[Claimed] | None = None,
        wanted: Wanted = WANTED,
        size: int = 50,
    ) -> ManyStep:
        found = batch.finish_and_claim_many(self.row.connection, self.row.slot, done or [], kept or [], wanted, size)
        self.row.slot = found.slot
        return found

    def claim(self, size: int = 50, wanted: Wanted = WANTED) -> list[Claimed]:
        return list(self.step(size=size, wanted=wanted).claimed)


def named(store: Store, worker: Batcher) -> set[UUID]:
    (row,) = store.query("select task_ids from deadsure.slots where slot = :slot", slot=worker.row.slot.id)
    return set(row["task_ids"])  # type: ignore[call-overload]


def states(store: Store, tasks: list[UUID]) -> list[object]:
    return [store.row(task)["state"] for task in tasks]


def ready(store: Store) -> list[tuple[object, object]]:
    return [(r["id"], r["batchable"]) for r in store.query("select id, batchable from deadsure.ready order by id")]


def test_many_are_claimed_in_order_and_the_slot_names_them_all(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(5)]
    worker = Batcher(store)
    claimed = worker.claim(size=3)
    assert [task.id for task in claimed] == tasks[:3]
    assert {(task.attempt, task.fence) for task in claimed} == {(1, 1)}
    assert named(store, worker) == set(tasks[:3])
    step = worker.step([Done(task, DONE) for task in claimed], size=3)
    assert step.finished == (State.SUCCEEDED,) * 3
    assert [task.id for task in step.claimed] == tasks[3:]
    assert states(store, tasks) == ["succeeded"] * 3 + ["running"] * 2
    assert named(store, worker) == set(tasks[3:])


def test_each_task_gets_its_own_outcome(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(3)]
    worker = Batcher(store)
    outcomes = [
        Outcome("succeeded", result='{"a": [1, "x\\"y"]}'),
        Outcome("failed", result="7", reason='it {said} "no", NULL'),
        DONE,
    ]
    step = worker.step([Done(task, how) for task, how in zip(worker.claim(), outcomes, strict=True)])
    assert step.finished == (State.SUCCEEDED, State.FAILED, State.SUCCEEDED)
    rows = [store.row(task) for task in tasks]
    assert [(row["result"], row["failure_reason"]) for row in rows] == [
        ({"a": [1, 'x"y']}, None),
        (None, 'it {said} "no", NULL'),
        (1, None),
    ]


@pytest.mark.parametrize("alone", ["plain", "failing"])
def test_a_kind_that_is_not_harmless_is_claimed_alone_and_nobody_overtakes_it(store: Store, alone: str) -> None:
    first = [store.submit("harmless") for _ in range(2)]
    other = store.submit(alone)
    last = [store.submit("harmless") for _ in range(2)]
    worker = Batcher(store)
    assert [task.id for task in worker.claim()] == first
    assert [task.id for task in Batcher(store).claim()] == [other]
    assert [task.id for task in Batcher(store).claim()] == last


def test_a_kind_with_a_budget_of_one_is_claimed_alone(store: Store) -> None:
    once = Kind("once", OnDeath.REQUEUE, max_attempts=1)
    pool.register_kinds(store.connection, [once])
    tasks = [store.submit("once") for _ in range(2)]
    wanted = Wanted.from_queues(["default"], (*KINDS, once))
    assert [task.id for task in Batcher(store).claim(wanted=wanted)] == tasks[:1]


def test_a_submit_with_a_smaller_budget_is_claimed_alone(store: Store) -> None:
    task = store.submit("harmless", max_attempts=1)
    behind = store.submit("harmless")
    assert [claimed.id for claimed in Batcher(store).claim()] == [task]
    assert [claimed.id for claimed in Batcher(store).claim()] == [behind]


def test_a_kind_that_this_worker_declares_otherwise_is_claimed_alone(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(2)]
    mine = Wanted.from_queues(["default"], (Kind("harmless", OnDeath.FAIL, max_attempts=3),))
    assert [task.id for task in Batcher(store).claim(wanted=mine)] == tasks[:1]


def test_after_a_death_each_task_of_the_batch_is_claimed_alone(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(3)]
    dead = Batcher(store)
    assert len(dead.claim()) == 3
    settled = recover.recover_worker(store.connection, dead.row.slot.id, ExitProof("SIGKILL"))
    assert {task.id for task in settled} == set(tasks)
    survivor = Batcher(store)
    for task in tasks:
        (claimed,) = survivor.claim()
        assert (claimed.id, claimed.attempt, claimed.fence) == (task, 2, 3)
        survivor.step([Done(claimed, DONE)], wanted=NOWHERE)
    assert states(store, tasks) == ["succeeded"] * 3


def test_a_task_that_was_never_started_goes_back_with_its_attempt(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(3)]
    worker = Batcher(store)
    done, running, waiting = worker.claim()
    step = worker.step([Done(done, DONE), Done(waiting)], kept=[running], wanted=NOWHERE)
    assert step.finished == (State.SUCCEEDED, State.QUEUED)
    assert states(store, tasks) == ["succeeded", "running", "queued"]
    assert named(store, worker) == {running.id}
    row = store.row(waiting.id)
    assert (row["attempts"], row["owner"], row["started_at"]) == (0, None, None)
    assert ready(store) == [(waiting.id, True)]
    (again,) = Batcher(store).claim()
    assert (again.id, again.attempt, again.fence) == (waiting.id, 1, 2)
    assert worker.step([Done(running, DONE)]).finished == (State.SUCCEEDED,)


def test_what_is_kept_is_recovered_after_a_death(store: Store) -> None:
    for _ in range(2):
        store.submit("harmless")
    worker = Batcher(store)
    running, waiting = worker.claim()
    worker.step([Done(waiting)], kept=[running], wanted=NOWHERE)
    settled = recover.recover_worker(store.connection, worker.row.slot.id, ExitProof("SIGKILL"))
    assert [(task.id, task.state) for task in settled] == [(running.id, State.QUEUED)]


def test_a_task_that_was_asked_to_cancel_is_canceled_when_it_goes_back(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(2)]
    worker = Batcher(store)
    running, waiting = worker.claim()
    for task in tasks:
        cancel.cancel(store.connection, task, "test")
    step = worker.step([Done(running, DONE), Done(waiting)])
    assert step.finished == (State.CANCELED, State.CANCELED)
    assert ready(store) == []


def test_one_refused_finish_claims_nothing_and_the_others_stand(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(3)]
    worker = Batcher(store)
    first, second = worker.claim(size=2)
    stale = msgspec.structs.replace(second, fence=second.fence + 1)
    step = worker.step([Done(first, DONE), Done(stale, DONE)])
    assert step.finished == (State.SUCCEEDED, None)
    assert step.claimed == ()
    assert states(store, tasks) == ["succeeded", "running", "queued"]


def test_a_foreign_owner_cannot_finish_a_batch(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(2)]
    mine = Batcher(store).claim()
    thief = Batcher(store)
    assert thief.step([Done(task, DONE) for task in mine]).finished == (None, None)
    assert states(store, tasks) == ["running"] * 2


def test_a_batch_under_an_old_token_or_an_ended_slot_does_nothing(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(3)]
    worker = Batcher(store)
    old = worker.row.slot
    claimed = worker.claim(size=2)
    done = [Done(task, DONE) for task in claimed]
    late = batch.finish_and_claim_many(store.connection, old, done, [], WANTED, 50)
    assert (late.refused, late.claimed) == (Refusal.SLOT_ENDED, ())
    recover.recover_worker(store.connection, worker.row.slot.id, ExitProof("SIGKILL"))
    assert worker.step(done).refused is Refusal.SLOT_ENDED
    assert states(store, tasks) == ["queued"] * 3


def test_a_result_that_cannot_be_stored_leaves_the_whole_batch_as_it_was(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(2)]
    worker = Batcher(store)
    first, second = worker.claim()
    with pytest.raises(StatementRefused):
        worker.step([Done(first, DONE), Done(second, Outcome("succeeded", result='"\\u0000"'))])
    assert states(store, tasks) == ["running"] * 2
    assert worker.step([Done(first, DONE), Done(second, DONE)]).finished == (State.SUCCEEDED,) * 2


def test_without_a_lease_a_batch_is_finished_and_nothing_is_claimed(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(3)]
    worker = Batcher(store)
    claimed = worker.claim(size=2)
    store.query("update deadsure.incarnations set lease_until = clock_timestamp() - interval '1 second'")
    step = worker.step([Done(task, DONE) for task in claimed])
    assert (step.finished, step.claimed, step.trusted) == ((State.SUCCEEDED,) * 2, (), False)
    assert states(store, tasks) == ["succeeded", "succeeded", "queued"]


def test_a_lost_answer_is_settled_by_what_the_slot_names(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(4)]
    worker = Batcher(store)
    held = worker.claim(size=2)
    before = worker.row.slot
    lost = batch.finish_and_claim_many(
        worker.row.connection, before, [Done(task, DONE) for task in held], [], WANTED, 50
    )
    found = hot.settle(store.connect(), before, held, [], worker.row.connection.backend)
    assert found.happened
    assert found.claimed == lost.claimed
    assert [task.id for task in found.claimed] == tasks[2:]
    assert found.slot is not None
    again = hot.settle(store.connect(), found.slot, found.claimed, [], None)
    assert (again.happened, again.claimed) == (False, ())


def test_a_lost_release_is_settled_in_the_same_way(store: Store) -> None:
    for _ in range(3):
        store.submit("harmless")
    worker = Batcher(store)
    held = worker.claim()
    before = worker.row.slot
    worker.step([Done(held[0], DONE), Done(held[2])], kept=[held[1]], wanted=NOWHERE)
    done, running, back = held
    found = hot.settle(store.connect(), before, [done, back], [running], None)
    assert (found.happened, found.claimed) == (True, ())
    assert found.slot is not None


def test_what_a_refused_finish_left_in_the_slot_does_not_pass_for_a_claim(store: Store) -> None:
    for _ in range(2):
        store.submit("harmless")
    worker = Batcher(store)
    lost, kept = worker.claim()
    store.query("update deadsure.tasks set fence = fence + 7 where id = :id", id=lost.id)
    assert worker.step([Done(lost, DONE)], kept=[kept], wanted=NOWHERE).finished == (None,)
    found = hot.settle(store.connect(), worker.row.slot, [kept], [], None)
    assert (found.happened, found.claimed) == (False, ())


def test_a_stale_row_in_a_batch_is_dropped(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(3)]
    store.query("update deadsure.tasks set state = 'canceled', finished_at = now() where id = :id", id=tasks[1])
    assert [task.id for task in Batcher(store).claim()] == [tasks[0], tasks[2]]
    assert ready(store) == []


def test_what_was_finished_is_not_finished_again(store: Store) -> None:
    task = store.submit("harmless")
    worker = Batcher(store)
    done = [Done(claimed, DONE) for claimed in worker.claim()]
    assert worker.step(done, wanted=NOWHERE).finished == (State.SUCCEEDED,)
    before = store.row(task)
    assert worker.step(done, wanted=NOWHERE).finished == (None,)
    assert store.row(task) == before


def test_a_refused_finish_leaves_the_slot_as_it_is(store: Store) -> None:
    store.submit("harmless")
    worker = Batcher(store)
    (task,) = worker.claim()
    store.query("update deadsure.tasks set fence = fence + 1")
    before = store.query("select * from deadsure.slots")
    assert worker.step([Done(task, DONE)]).finished == (None,)
    assert store.query("select * from deadsure.slots") == before


def test_of_two_copies_of_one_statement_at_once_one_does_nothing(store: Store) -> None:
    tasks = [store.submit("harmless") for _ in range(4)]
    worker, copy = Batcher(store), store.connect("copy")
    slot = worker.row.slot
    late: list[ManyStep] = []
    with worker.row.connection.transaction():
        first = worker.claim(size=2)
        sending = threading.Thread(
            target=lambda: late.append(batch.finish_and_claim_many(copy, slot, [], [], WANTED, 2))
        )
        sending.start()
        wait_until(lambda: store.waits_for_a_lock("copy"), "the copy waits for the slot")
    sending.join(10)
    assert [(step.refused, step.claimed) for step in late] == [(Refusal.SLOT_ENDED, ())]
    assert named(store, worker) == {task.id for task in first} == set(tasks[:2])
