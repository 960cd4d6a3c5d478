"""What a worker did and was killed before it could count it: its recovery finds exactly that, and nothing else.

The worker is a session with a slot (kit.store); its counter listens to the facts of this process. That it was killed
between a commit and its count is shown by taking the counter away before that commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import pytest
from deadsure import Contract
from deadsure.metrics import catalogue as c
from deadsure.metrics import cells
from deadsure.metrics.memory import MetricsMemory
from deadsure.metrics.supervisor import SupervisorCounter
from deadsure.metrics.worker import WorkerCounter, decode, encode
from deadsure.runtime import events, reconciling
from deadsure.runtime.facts import Asking, Missed, Recovered
from deadsure.runtime.model import Claimed, EffectEnd, ExitProof, Outcome
from deadsure.runtime.store import batch, cancel, effects, hot, pool, reconcile, recover
from deadsure.runtime.store.account import Counted
from deadsure.runtime.store.batch import Done
from kit.bank import FULL, new_bank
from kit.store import WANTED, Store, WorkerRow

DONE = Outcome("succeeded", result="1")
KILLED = ExitProof("SIGKILL")


class Seat:
    """One worker's seat: what it counts while it lives, and what its recovery adds."""

    def __init__(self, store: Store, memory: MetricsMemory) -> None:
        self.memory = memory
        self.worker: WorkerRow = store.worker()
        self._store = store
        self._counter = WorkerCounter(memory, memory.seats[0], self.worker.slot.id)

    @contextmanager
    def counting(self, *only: type) -> Iterator[None]:
        """The worker lives: what happens in this block is counted. `only`: killed before it counts anything else."""
        events.count(lambda fact: self._counter(fact) if not only or type(fact) in only else None)
        try:
            yield
        finally:
            events.unsubscribe_all()

    def claim(self) -> Claimed:
        claimed = self.worker.claim()
        assert claimed is not None
        return claimed

    def dies(self) -> None:
        """Recovered by its exit, twice, as after an answer that was lost; counted once."""
        slot = self.worker.slot.id
        counted = decode(self.memory.seats[0].take_over(), slot)
        recover.recover_and_account(self._store.connection, slot, KILLED, counted)
        settled, missed = recover.recover_and_account(self._store.connection, slot, KILLED, counted)
        supervisor = SupervisorCounter(self.memory)
        supervisor(missed)
        supervisor(Recovered("exit", settled, "worker_died", 0.1))

    def counts(self) -> Counter[str]:
        """Every count that is not zero, over all pages."""
        found: Counter[str] = Counter()
        for page in self.memory.pages:
            for metric in (c.CLAIMS, c.FINISHES, c.RECOVERIES, c.CONFLICTS):
                for values, start in cells.BLOCKS["pool"].series(metric):
                    found[" ".join((metric.name.removeprefix("deadsure_").removesuffix("_total"), *values))] += (
                        page.cells[start]
                    )
            for index, _ in enumerate(self.memory.providers.all()):
                for values, _ in cells.BLOCKS["provider"].series(c.RECONCILES):
                    found[" ".join(("reconciles", *values))] += page.cells[
                        cells.of_provider(c.RECONCILES, index, *values)
                    ]
            for index, kind in enumerate(self.memory.kinds.all()):
                for values, _ in cells.BLOCKS["kind"].series(c.FINISHED):
                    found[" ".join((kind, *values))] += page.cells[cells.of_kind(c.FINISHED, index, *values)]
                for values, _ in cells.BLOCKS["kind"].series(c.UNKNOWN):
                    found[" ".join((kind, *values))] += page.cells[cells.of_kind(c.UNKNOWN, index, *values)]
                waits = cells.of_kind(c.TASK_WAIT, index)
                found[f"{kind} waits"] += sum(page.cells[waits : waits + len(c.TASK_WAIT.buckets) + 1].tolist())
        return +found


@pytest.fixture
def seat(store: Store) -> Seat:
    return Seat(store, MetricsMemory(seats=1, apis=0))


def test_a_worker_that_lives_counts_what_it_did(seat: Seat, store: Store) -> None:
    store.submit("failing")
    with seat.counting():
        seat.worker.finish(seat.claim(), DONE)
        assert seat.worker.claim() is None
    seat.dies()
    assert seat.counts() == {
        "claims won": 1, "claims empty": 1, "finishes committed": 1, "failing succeeded": 1, "failing waits": 1,
    }  # fmt: skip


def test_a_claim_that_was_not_counted_is_found(seat: Seat, store: Store) -> None:
    store.submit("failing")
    seat.claim()
    seat.dies()
    assert seat.counts() == {"claims won": 1, "failing waits": 1, "recoveries exit": 1, "failing failed": 1}


def test_a_finish_with_a_claim_that_was_not_counted_is_found(seat: Seat, store: Store) -> None:
    store.submit("failing")
    store.submit("plain")
    with seat.counting():
        first = seat.claim()
    step = hot.finish_and_claim(seat.worker.connection, seat.worker.slot, first, DONE, WANTED)
    assert step.claimed is not None
    seat.dies()
    assert seat.counts() == {
        "claims won": 2, "finishes settled_by_reading": 1, "failing succeeded": 1, "failing waits": 1,
        "plain waits": 1, "plain worker_died": 1, "recoveries exit": 1,
    }  # fmt: skip


def test_a_finish_alone_that_was_not_counted_is_found(seat: Seat, store: Store) -> None:
    store.submit("failing")
    with seat.counting():
        task = seat.claim()
    seat.worker.finish(task, Outcome("failed", reason="no"))
    seat.dies()
    assert seat.counts() == {
        "claims won": 1, "finishes settled_by_reading": 1, "failing failed": 1, "failing waits": 1,
    }  # fmt: skip


def test_what_was_counted_is_not_found_again(seat: Seat, store: Store) -> None:
    store.submit("failing")
    with seat.counting():
        seat.worker.finish(seat.claim(), DONE)
    seat.dies()
    seat.dies()
    assert seat.counts() == {"claims won": 1, "finishes committed": 1, "failing succeeded": 1, "failing waits": 1}


def test_a_finish_that_was_never_sent_is_not_counted(seat: Seat, store: Store) -> None:
    store.submit("failing")
    with seat.counting():
        seat.claim()
    seat.dies()
    assert seat.counts() == {"claims won": 1, "failing waits": 1, "recoveries exit": 1, "failing failed": 1}


@pytest.mark.parametrize(
    ("outcome", "became"),
    [
        (Outcome("retry", reason="again", delay=60.0), []),
        (Outcome("unknown", effect=EffectEnd(False, "decision", "ambiguous_answer")), ["harmless ambiguous_answer"]),
        (Outcome("succeeded", result="1", effect=EffectEnd(True, "lookup", receipt="{}")), ["harmless succeeded"]),
    ],
)
def test_a_finish_outside_the_hot_path_is_found_with_what_it_came_to(
    seat: Seat, store: Store, outcome: Outcome, became: list[str]
) -> None:
    store.submit("harmless")
    with seat.counting():
        task = seat.claim()
    effects.finish_alone(seat.worker.connection, seat.worker.slot, task, outcome)
    seat.dies()
    expected = {"claims won": 1, "harmless waits": 1, "finishes settled_by_reading": 1, **dict.fromkeys(became, 1)}
    assert seat.counts() == expected


def test_a_retry_that_somebody_else_has_finished_since_counts_as_a_retry(seat: Seat, store: Store) -> None:
    store.submit("harmless")
    with seat.counting():
        task = seat.claim()
    effects.finish_alone(seat.worker.connection, seat.worker.slot, task, Outcome("retry", reason="x", delay=0.0))
    assert pool.promote(store.connection) == 1
    other = store.worker()
    again = other.claim()
    assert again is not None
    other.finish(again, DONE)
    seat.dies()
    assert seat.counts() == {"claims won": 1, "harmless waits": 1, "finishes settled_by_reading": 1}


def test_a_success_that_a_cancel_turned_counts_as_canceled(seat: Seat, store: Store) -> None:
    id = store.submit("harmless")
    with seat.counting():
        task = seat.claim()
    cancel.cancel(store.connection, id)
    seat.worker.finish(task, DONE)
    seat.dies()
    assert seat.counts()["harmless canceled"] == 1


def test_a_batch_that_was_not_counted_is_found_task_by_task(seat: Seat, store: Store) -> None:
    for _ in range(5):
        store.submit("harmless")
    worker = seat.worker
    with seat.counting():
        taken = batch.finish_and_claim_many(worker.connection, worker.slot, [], [], WANTED, 3)
    first, second, third = taken.claimed
    done = [Done(first, DONE), Done(second)]  # the second one goes back
    step = batch.finish_and_claim_many(worker.connection, taken.slot, done, [third], WANTED, 2)
    assert len(step.claimed) == 2
    seat.dies()
    assert seat.counts() == {
        "claims won": 5, "harmless waits": 5, "finishes settled_by_reading": 1, "harmless succeeded": 1,
        "recoveries exit": 3,
    }  # fmt: skip


def test_a_refused_finish_is_not_taken_for_one_that_landed_later(seat: Seat, store: Store) -> None:
    id = store.submit("failing")
    store.submit("plain")
    owner = "update deadsure.tasks set owner = :owner where id = :id"
    with seat.counting():
        task = seat.claim()
        store.query(owner, owner=UUID(int=7), id=id)
        assert seat.worker.finish(task, DONE).refused is not None
    store.query("update deadsure.tasks set state = 'succeeded', result = '1', owner = null, finished_at = now()")
    store.query("update deadsure.tasks set state = 'queued', result = null, finished_at = null where kind = 'plain'")
    seat.claim()  # the slot names this one from now on
    seat.dies()
    assert seat.counts() == {
        "claims won": 2, "finishes refused": 1, "failing waits": 1, "plain waits": 1, "plain worker_died": 1,
        "recoveries exit": 1,
    }  # fmt: skip


def test_a_lost_answer_counts_as_settled_by_reading(seat: Seat, store: Store) -> None:
    store.submit("failing")
    store.submit("plain")
    with seat.counting():
        first = seat.claim()
    hot.finish_and_claim(seat.worker.connection, seat.worker.slot, first, DONE, WANTED)
    with seat.counting():
        found = hot.settle(store.connect(), seat.worker.slot, [first], [], seat.worker.connection.backend)
    assert found.happened
    seat.dies()
    assert seat.counts() == {
        "claims won": 2, "finishes settled_by_reading": 1, "failing succeeded": 1, "failing waits": 1,
        "plain waits": 1, "plain worker_died": 1, "recoveries exit": 1,
    }  # fmt: skip


def test_a_worker_that_died_before_its_slot_was_there_has_missed_nothing(store: Store) -> None:
    settled, missed = recover.recover_and_account(store.connection, UUID(int=9), KILLED, Counted())
    assert (settled, missed) == ([], Missed())


@pytest.mark.parametrize(
    ("contract", "performed", "outcome", "became"),
    [
        (FULL, True, "found", ["transfer succeeded"]),
        (FULL, False, "queued", []),
        (replace(FULL, dedups_by_key=False, settle_after=60), False, "later", []),
        (replace(FULL, key_retention=0), True, "found", ["transfer succeeded"]),
    ],
)
def test_a_lookup_that_was_not_counted_is_found(
    seat: Seat, store: Store, contract: Contract, performed: bool, outcome: str, became: list[str]
) -> None:
    bank = new_bank(store, contract)
    bank.submit()
    bank.die(performed=performed)
    with seat.counting(Asking):  # killed after the commit, before what it came to was counted
        assert bank.reconcile() == outcome
    seat.dies()
    assert seat.counts() == {f"reconciles {outcome}": 1, **dict.fromkeys(became, 1)}


def test_a_lookup_whose_answer_was_lost_is_counted_as_what_it_did(seat: Seat, store: Store) -> None:
    bank = new_bank(store)
    bank.submit()
    bank.die(performed=True)
    doubt = reconcile.claim_lookup(store.connection, seat.worker.slot.id, ["transfer"], 30)
    assert doubt is not None
    answer = reconciling.ask(bank.app, doubt)
    with seat.counting(Asking):
        assert reconciling.settle(store.connection, bank.app, doubt, answer) == "found"
    with seat.counting():
        assert reconciling.settle(store.connection, bank.app, doubt, answer) == "found"
    seat.dies()
    assert seat.counts() == {"reconciles found": 1, "transfer succeeded": 1}


def test_a_lookup_that_wrote_nothing_is_not_counted_by_the_recovery(seat: Seat, store: Store) -> None:
    bank = new_bank(store)
    bank.submit()
    bank.die(performed=True)
    doubt = reconcile.claim_lookup(store.connection, seat.worker.slot.id, ["transfer"], 30)
    assert doubt is not None
    with seat.counting():
        events.note(Asking(doubt.id, doubt.fence, doubt.lookups, "ledger"))
    seat.dies()
    assert seat.counts() == {}


def test_the_state_of_another_worker_in_the_seat_is_not_taken_for_mine(store: Store) -> None:
    counted = Counted(((UUID(int=1), 2), (UUID(int=3), 4)), False, Asking(UUID(int=1), 5, 6, "bänk"))
    state = encode(UUID(int=8), counted.names, counted.held, counted.asking)
    assert decode(state, UUID(int=8)) == counted
    assert decode(state, UUID(int=9)) == Counted()
    assert decode(b"", UUID(int=8)) == Counted()


def test_a_conflict_is_counted_when_a_due_task_was_passed_over_and_only_then(seat: Seat, store: Store) -> None:
    first, second = store.submit("plain"), store.submit("plain")
    holder = store.connect()
    with seat.counting():
        with holder.transaction():
            holder._driver.run("select 1 from deadsure.ready where id = cast(:id as uuid) for update", id=str(first))
            assert seat.claim().id == second
        assert seat.counts()["claim_conflicts"] == 1
        assert seat.claim().id == first
    assert seat.counts()["claim_conflicts"] == 1
