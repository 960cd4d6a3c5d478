"""What a claim reads does not grow with the queue, whatever the planner knew about the tables when it planned, nor with
the versions that an old snapshot keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from deadsure.runtime.ids import new_token
from deadsure.runtime.model import Outcome, Slot
from deadsure.runtime.store import batch, effects, hot, pool
from deadsure.runtime.store.effects import Prepared
from kit.store import WANTED, Store, WorkerRow

DONE = Outcome("succeeded", result="1")
QUEUED = 1500
STEPS = 200
#: Rows of `ready`: the one that is taken, found three times (picked, passed over, gone), and a few to spare.
FEW = 10


def _fill(store: Store) -> None:
    store.query(
        "select count(deadsure.submit('harmless', cast(cast(n as text) as jsonb))) from generate_series(1, :n) n",
        n=QUEUED,
    )


def _analyzed_when_empty(store: Store) -> None:
    store.query("analyze")
    _fill(store)


def _analyzed_when_small(store: Store) -> None:
    for number in range(5):
        store.submit("harmless", str(number))
    store.query("analyze")
    _fill(store)


def _analyzed_when_full(store: Store) -> None:
    _fill(store)
    store.query("analyze")


SITUATIONS = [_fill, _analyzed_when_empty, _analyzed_when_small, _analyzed_when_full]


@pytest.mark.parametrize("planned", ["before", "after"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_claim_reads_a_few_rows_of_a_long_queue(
    store: Store, situation: Callable[[Store], None], planned: str
) -> None:
    worker = store.worker()
    if planned == "before":
        assert worker.claim() is None
    situation(store)
    with worker.connection.transaction():
        assert worker.claim() is not None
        assert _read(worker.connection, "ready") <= FEW
        assert _read(worker.connection, "tasks") <= FEW


@pytest.mark.parametrize("planned", ["before", "after"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_batch_reads_little_more_than_it_takes(
    store: Store, situation: Callable[[Store], None], planned: str
) -> None:
    connection, slot = store.connect(), Slot(uuid4(), new_token())
    assert pool.register_slot(connection, slot, store.incarnation, 1)
    if planned == "before":
        slot = batch.finish_and_claim_many(connection, slot, [], [], WANTED, 50).slot
    situation(store)
    with connection.transaction():
        assert len(batch.finish_and_claim_many(connection, slot, [], [], WANTED, 50).claimed) == 50
        assert _read(connection, "ready") <= 4 * 50 + FEW
        assert _read(connection, "tasks") <= 2 * 50 + FEW


def _one_at_a_time(worker: WorkerRow) -> None:
    task = worker.claim()
    for _ in range(STEPS):
        assert task is not None
        task = worker._took(hot.finish_and_claim(worker.connection, worker.slot, task, DONE, WANTED)).claimed


def _in_batches(worker: WorkerRow) -> None:
    done: list[batch.Done] = []
    for _ in range(STEPS):
        step = batch.finish_and_claim_many(worker.connection, worker.slot, done, [], WANTED, 2)
        worker.slot, done = step.slot, [batch.Done(task, DONE) for task in step.claimed]
        assert len(done) == 2


def _effects(worker: WorkerRow) -> None:
    for _ in range(STEPS):
        task = worker.claim()
        assert task is not None
        what = Prepared("bank", "bank", f"deadsure-{task.id}", "{}", "f", b"{}")
        assert effects.before_call(worker.connection, worker.slot, task, what, 10, None).verdict == "go"
        worker._took(effects.finish_alone(worker.connection, worker.slot, task, DONE))


@pytest.mark.parametrize("work", [_one_at_a_time, _in_batches, _effects])
def test_a_worker_finds_its_slot_behind_all_the_versions_that_nobody_may_remove(
    store: Store, work: Callable[[WorkerRow], None]
) -> None:
    _fill(store)
    worker = store.worker()
    with worker.connection.transaction():  # all its versions stay until the end, as with an old snapshot
        work(worker)
        assert _scanned(worker.connection, "slots") <= FEW
        assert _read(worker.connection, "slots") <= 3 * STEPS + FEW


def test_a_slot_that_has_moved_is_found_by_its_id(store: Store) -> None:
    worker = store.worker()
    for number in range(4):
        store.submit("harmless", str(number))
    task = worker.claim()
    store.query("vacuum full deadsure.slots")
    assert task is not None
    step = hot.finish_and_claim(worker.connection, worker.slot, task, DONE, WANTED)
    assert (step.refused, step.finished) == (None, "succeeded")
    assert step.claimed is not None


def _scanned(connection: object, table: str) -> int:
    """How often the session's transaction has used an index of this table so far, or read it whole."""
    rows = connection._driver.run(  # type: ignore[attr-defined]
        "select coalesce(seq_scan, 0) + coalesce(idx_scan, 0) from pg_stat_xact_user_tables where relname = :table",
        table=table,
    )
    return int(rows[0][0])


def _read(connection: object, table: str) -> int:
    """Rows of this table that the session's transaction has read so far."""
    rows = connection._driver.run(  # type: ignore[attr-defined]
        "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relname = :table",
        table=table,
    )
    return int(rows[0][0])
