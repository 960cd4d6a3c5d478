"""Sweeping: an incarnation whose lease is over, by the database's clock, is ended by whoever lives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from deadsure.runtime import db, dsn, sql
from deadsure.runtime.errors import InDoubt
from deadsure.runtime.ids import new_token
from deadsure.runtime.model import ExitProof, Outcome, Refusal, Slot
from deadsure.runtime.store import hot, pool, recover
from deadsure.supervisor.incarnation import Incarnation
from deadsure.supervisor.lease import Lease, boottime
from deadsure.supervisor.link import Link
from deadsure.supervisor.pool_lock import PoolLock
from deadsure.supervisor.resolver import Resolver
from deadsure.supervisor.settings import PoolSettings
from kit.postgres import free_port
from kit.scale import count
from kit.store import LOCK, WANTED, Store
from kit.wait import wait_until

DONE = Outcome("succeeded", result="1")
#: What comes with a renewal, and is not asked for here.
IGNORED = (lambda _: None, lambda _: None)


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


def test_a_renewal_whose_answer_was_lost_kills_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(store.incarnation, 60.0)
    store.query("update deadsure.incarnations set token = :t", t=lease.token)
    renew = pool.renew

    def renew_unheard(*asked: Any) -> bool:
        assert renew(*asked)
        raise InDoubt("lost")

    with monkeypatch.context() as deaf:
        deaf.setattr(pool, "renew", renew_unheard)
        for _ in range(2):
            with pytest.raises(InDoubt):
                lease.renew(store.connection)
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


def test_a_registration_waits_for_the_sweep_that_ends_its_incarnation(store: Store) -> None:
    _expire(store, store.incarnation)
    me, sweeping, registering = store.new_incarnation(), store.connect(), store.connect("registering")
    mine: list[bool] = []
    slot = Slot(uuid4(), new_token())
    with sweeping.transaction():
        assert sweeping.run(sql.statement("end_expired_incarnations"), incarnation=me) != []
        thread = threading.Thread(
            target=lambda: mine.append(pool.register_slot(registering, slot, store.incarnation, 1))
        )
        thread.start()
        wait_until(lambda: store.waits_for_a_lock("registering") or not thread.is_alive(), "it waits")
    thread.join(10)
    assert mine == [False]


def test_an_incarnation_is_not_closed_while_one_of_its_slots_is_open(store: Store) -> None:
    worker = store.worker()
    assert not pool.end_incarnation(store.connection, store.incarnation)
    recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    assert pool.end_incarnation(store.connection, store.incarnation)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[db.Settings], Incarnation]]:
    """Makes a supervisor's incarnation on this database, which renews at every turn."""
    links: list[Link] = []

    def make(settings: db.Settings) -> Incarnation:
        links.append(Link(settings, "test", Resolver(settings.dsn)))
        pool_settings = PoolSettings(settings, "app", tmp_path, tmp_path, lease=10.0, renew_every=0.0)
        return Incarnation(pool_settings, lock, links[-1], print)

    lock = PoolLock(tmp_path / "default.pool")
    yield make
    os.close(lock.fd)
    for link in links:
        link.close()


def test_without_a_database_a_lease_is_trusted_to_the_end_of_its_window_and_no_longer(
    begin: Callable[[db.Settings], Incarnation],
) -> None:
    incarnation = begin(db.Settings(dsn.parse(f"postgresql://deadsure@127.0.0.1:{free_port()}/deadsure")))
    incarnation.lease.registered(boottime())
    assert incarnation.renew_if_due(*IGNORED)
    incarnation.lease.registered(boottime() - 8_000_000_000)
    assert not incarnation.renew_if_due(*IGNORED)


def test_a_lease_that_was_refused_is_lost_at_once(store: Store, begin: Callable[[db.Settings], Incarnation]) -> None:
    incarnation = begin(store.settings)
    assert incarnation.begin(inherit=False)
    assert incarnation.renew_if_due(*IGNORED)
    store.query("update deadsure.incarnations set ended_at = clock_timestamp(), ended_by = 'lease'")
    assert not incarnation.renew_if_due(*IGNORED)
    assert incarnation.lease.trusted
