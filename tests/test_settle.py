"""After a lost answer: the slot tells what really happened, and a late copy of the statement can do nothing."""

from __future__ import annotations

import threading

import pytest
from deadsure.runtime import sql
from deadsure.runtime.errors import InDoubt
from deadsure.runtime.model import Claimed, ExitProof, Outcome, Refusal
from deadsure.runtime.store import hot, recover
from kit.store import WANTED, Store, WorkerRow
from kit.wait import wait_until

DONE = Outcome("succeeded", result="1")


def _holding(store: Store) -> tuple[WorkerRow, Claimed]:
    store.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    return worker, claimed


def test_a_statement_that_never_arrived_is_sent_again(store: Store) -> None:
    worker, claimed = _holding(store)
    found = hot.settle(store.connect(), worker.slot, [claimed], [], worker.connection.backend)
    assert (found.happened, found.claimed) == (False, ())
    assert found.slot is not None
    assert hot.finish(store.connection, found.slot, claimed, DONE).refused is None
    assert store.row(claimed.id)["state"] == "succeeded"


def test_a_finish_that_landed_is_not_sent_again_and_its_claim_is_started(store: Store) -> None:
    worker, claimed = _holding(store)
    following = store.submit(payload='{"next": 1}')
    lost = hot.finish_and_claim(worker.connection, worker.slot, claimed, DONE, WANTED)
    found = hot.settle(store.connect(), worker.slot, [claimed], [], worker.connection.backend)
    assert found.happened
    (mine,) = found.claimed
    assert mine == lost.claimed
    assert (mine.id, mine.payload) == (following, '{"next": 1}')
    assert found.slot is not None
    assert hot.finish(store.connection, found.slot, mine, DONE).refused is None


def test_a_finish_that_landed_and_found_nothing_more_leaves_empty_hands(store: Store) -> None:
    worker, claimed = _holding(store)
    hot.finish_and_claim(worker.connection, worker.slot, claimed, DONE, WANTED)
    found = hot.settle(store.connect(), worker.slot, [claimed], [], worker.connection.backend)
    assert (found.happened, found.claimed) == (True, ())


def test_a_claim_that_landed_is_started_although_its_answer_was_lost(store: Store) -> None:
    task, worker = store.submit(), store.worker()
    hot.claim(worker.connection, worker.slot, WANTED)
    found = hot.settle(store.connect(), worker.slot, [], [], worker.connection.backend)
    assert [(claimed.id, claimed.attempt) for claimed in found.claimed] == [(task, 1)]


def test_settling_can_itself_be_repeated(store: Store) -> None:
    worker, claimed = _holding(store)
    hot.settle(store.connect(), worker.slot, [claimed], [], worker.connection.backend)
    found = hot.settle(store.connect(), worker.slot, [claimed], [], None)
    assert (found.happened, found.claimed) == (False, ())


def test_a_worker_whose_slot_has_ended_learns_it(store: Store) -> None:
    worker, claimed = _holding(store)
    recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    assert hot.settle(store.connect(), worker.slot, [claimed], [], None).slot is None


def test_the_lost_statement_fails_when_it_arrives_after_the_settling(store: Store) -> None:
    worker, claimed = _holding(store)
    late_session = store.connect()
    hot.settle(store.connect(), worker.slot, [claimed], [], None)
    late = hot.finish_and_claim(late_session, worker.slot, claimed, DONE, WANTED)
    assert late.refused is Refusal.SLOT_ENDED
    assert store.row(claimed.id)["state"] == "running"


def test_an_old_session_that_still_holds_the_slot_is_ended_first(store: Store) -> None:
    worker, claimed = _holding(store)
    old = worker.connection.backend
    worker.connection._driver.run("begin")
    assert hot.finish(worker.connection, worker.slot, claimed, DONE).refused is None
    fresh = store.connect()
    fresh.script("set lock_timeout = '500ms'")
    found = hot.settle(fresh, worker.slot, [claimed], [], old)
    assert not found.happened
    with pytest.raises(InDoubt):
        worker.connection.run(sql.statement("ping"))
    assert store.row(claimed.id)["state"] == "running"


def test_without_knowing_the_old_session_settling_waits_for_its_verdict(store: Store) -> None:
    worker, claimed = _holding(store)
    found: list[hot.Settlement] = []
    with worker.connection.transaction():
        hot.finish(worker.connection, worker.slot, claimed, DONE)
        fresh = store.connect("settler")
        settling = threading.Thread(target=lambda: found.append(hot.settle(fresh, worker.slot, [claimed], [], None)))
        settling.start()
        wait_until(lambda: store.waits_for_a_lock("settler"), "the settling waits for the slot's lock")
    settling.join(10)
    assert [settlement.happened for settlement in found] == [True]


def test_a_slot_whose_token_this_worker_never_made_is_not_taken_over(store: Store) -> None:
    worker, claimed = _holding(store)
    store.query("update deadsure.slots set token = token + 1")  # as on a standby that missed the last commits
    assert hot.settle(store.connect(), worker.slot, [claimed], [], None).slot is None
    assert store.row(claimed.id)["state"] == "running"
