"""What is locked first: so nobody waits in a circle, and nobody decides by what he read before he had to wait."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from deadsure.runtime.ids import new_token, uuid4
from deadsure.runtime.model import Slot
from deadsure.runtime.store import cancel, pool, reconcile
from deadsure.runtime.store.reconcile import Decision
from kit.bank import FULL, new_bank
from kit.store import Store
from kit.wait import wait_until


def test_a_lookup_that_is_wanted_now_and_a_decision_do_not_deadlock(store: Store) -> None:
    bank = new_bank(store, max_attempts=1)
    task = bank.submit()
    bank.die(performed=False)
    assert bank.reconcile() == "decision"
    seen = store.row(task)["version"]
    assert isinstance(seen, int)
    decision = Decision(uuid4(), task, seen, "failed", "the bank said so", "eve")
    first, second, third = store.connect("first"), store.connect("second"), store.connect("third")
    with ThreadPoolExecutor(2) as threads:
        first._driver.run("begin")
        cancel.cancel(first, task, "somebody")
        decided: Future[None] = threads.submit(reconcile.resolve, second, decision)
        wait_until(lambda: store.waits_for_a_lock("second"), "the decision waits for the task")
        asked = threads.submit(reconcile.ask_now, third, task)
        wait_until(lambda: store.waits_for_a_lock("third"), "the other one waits, too")
        first._driver.run("rollback")
        decided.result(10)
        assert asked.result(10) == ("failed", True)


def test_what_an_unknown_task_needs_is_said_by_whoever_was_last(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=False)
    cancel.cancel(store.connection, task, "somebody")
    worker, other = store.worker(), store.connect("other")
    doubt = reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 30)
    assert doubt is not None
    with ThreadPoolExecutor(1) as threads:
        with worker.connection.transaction():
            assert reconcile.absent(worker.connection, doubt, FULL) == "decision"
            asked = threads.submit(reconcile.ask_now, other, task)
            wait_until(lambda: store.waits_for_a_lock("other"), "whoever wants a lookup waits for the answer")
        assert asked.result(10) == ("unknown", True)
    (row,) = store.query("select needs from deadsure.unknowns")
    assert (row["needs"], store.row(task)["unknown_needs"]) == ("lookup", "lookup")


def test_an_incarnation_is_not_closed_over_a_slot_that_is_being_registered(store: Store) -> None:
    first, second = store.connect("first"), store.connect("second")
    slot = Slot(uuid4(), new_token())
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            assert pool.register_slot(first, slot, store.incarnation, 1)
            closed = threads.submit(pool.end_incarnation, second, store.incarnation)
            wait_until(lambda: store.waits_for_a_lock("second"), "the end waits for the registration")
        assert not closed.result(10)
    assert pool.open_slots(store.connection, store.incarnation) == [slot.id]
