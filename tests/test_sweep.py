"""Sweeping: an incarnation whose lease is over, by the database's clock, is ended by whoever lives."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest
from deadsure.runtime.ids import new_token
from deadsure.runtime.model import Outcome, Refusal
from deadsure.runtime.store import hot, pool, recover
from deadsure.supervisor.lease import Lease, boottime
from kit.scale import count
from kit.store import LOCK, WANTED, Store
from kit.wait import wait_until

DONE = Outcome("succeeded", result="1")


def _expire(store: Store, incarnation: UUID) -> None:
    store.query(
        "update deadsure.incarnations set lease_until = clock_timestamp() - interval '1 ms' where incarnation = :i",
        i=incarnation,
    )


@pytest.mark.parametrize(("kind", "state"), [("plain", "unknown"), ("failing", "failed"), ("harmless", "queued")])
def test_a_lost_incarnations_tasks_are_settled_by_its_lease(store: Store, kind: str, state: str) -> None:
    store.submit(kind)
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    me = store.new_incarnation()
    assert recover.sweep(store.connection, me) == ([], [])
    _expire(store, store.incarnation)
    ended, settled = recover.sweep(store.connection, me)
    assert (ended, [task.id for task in settled]) == ([store.incarnation], [claimed.id])
    row = store.row(claimed.id)
    assert row["state"] == state
    if state == "failed":
        assert row["failure_reason"] == "lease expired before worker completion"
    if state == "unknown":
        assert (row["unknown_cause"], row["unknown_proof"]) == ("lease_expired", "lease")
    assert worker.finish(claimed, DONE).refused is Refusal.SLOT_ENDED
    assert recover.sweep(store.connection, me) == ([], [])


def test_a_supervisor_never_sweeps_itself(store: Store) -> None:
    _expire(store, store.incarnation)
    assert recover.sweep(store.connection, store.incarnation) == ([], [])


def test_a_late_finish_after_a_sweep_is_refused_every_time(store: Store) -> None:
    workers = [store.worker() for _ in range(count(long=80, ci=20))]
    for _ in workers:
        store.submit("plain")
    held = [(worker, worker.claim()) for worker in workers]
    _expire(store, store.incarnation)
    assert len(recover.sweep(store.connection, store.new_incarnation())[1]) == len(workers)
    for worker, claimed in held:
        assert claimed is not None
        step = hot.finish_and_claim(worker.connection, worker.slot, claimed, DONE, WANTED)
        assert (step.refused, step.claimed) == (Refusal.SLOT_ENDED, None)
        assert store.row(claimed.id)["state"] == "unknown"


def test_a_renewal_that_comes_first_wins_and_one_that_comes_late_is_refused(store: Store) -> None:
    lease = Lease(store.incarnation, 60.0)
    store.query("update deadsure.incarnations set token = :t", t=lease.token)
    _expire(store, store.incarnation)
    assert lease.renew(store.connection)
    assert recover.sweep(store.connection, store.new_incarnation()) == ([], [])
    _expire(store, store.incarnation)
    recover.sweep(store.connection, store.new_incarnation())
    assert not lease.renew(store.connection)


def test_a_sweep_leaves_an_incarnation_alone_that_is_being_renewed(store: Store) -> None:
    _expire(store, store.incarnation)
    me = store.new_incarnation()
    renewing = store.connect("renewing")
    with renewing.transaction():
        renewing._driver.run("select 1 from deadsure.incarnations for update")
        assert recover.sweep(store.connection, me) == ([], [])


def test_a_cloned_supervisor_is_refused_at_its_second_renewal(store: Store) -> None:
    original = Lease(store.incarnation, 60.0)
    store.query("update deadsure.incarnations set token = :t", t=original.token)
    clone = Lease(store.incarnation, 60.0)
    clone.token = original.token
    assert original.renew(store.connection)
    assert not clone.renew(store.connection)
    assert original.renew(store.connection)


def test_a_renewal_whose_answer_was_lost_kills_nobody(store: Store) -> None:
    lease = Lease(store.incarnation, 60.0)
    store.query("update deadsure.incarnations set token = :t", t=lease.token)
    lost = new_token()
    assert pool.renew(store.connection, store.incarnation, [lease.token], lost, 60.0)
    lease._in_doubt.append(lost)
    assert lease.renew(store.connection)
    assert lease.renew(store.connection)


def test_the_trust_window_is_counted_from_the_start_of_the_renewal(store: Store) -> None:
    lease = Lease(store.incarnation, 10.0)
    store.query("update deadsure.incarnations set token = :t", t=lease.token)
    blocker = store.connect("blocker")
    before = boottime()
    with blocker.transaction():
        blocker._driver.run("select 1 from deadsure.incarnations for update")
        renewing = threading.Thread(target=lambda: lease.renew(store.connect("renewing")))
        renewing.start()
        wait_until(lambda: store.waits_for_a_lock("renewing"), "the renewal waits")
        sent = boottime()
    renewing.join(10)
    assert before + 8e9 <= lease.trusted_until <= sent + 8e9


def test_a_worker_cannot_register_under_an_incarnation_that_has_ended(store: Store) -> None:
    _expire(store, store.incarnation)
    recover.sweep(store.connection, store.new_incarnation())
    with pytest.raises(AssertionError):
        store.worker()


def test_lease_left_speaks_of_the_lock_file(store: Store) -> None:
    left = pool.lease_left(store.connection, "default", LOCK)
    assert left is not None
    assert 50 < left <= 60
    assert pool.lease_left(store.connection, "other", LOCK) is None
