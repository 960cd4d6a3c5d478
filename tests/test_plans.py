"""What a claim reads does not grow with the queue, whatever the planner knew about the tables when it planned."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from deadsure.runtime.ids import new_token
from deadsure.runtime.model import Slot
from deadsure.runtime.store import batch, pool
from kit.store import WANTED, Store

QUEUED = 1500
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


def _read(connection: object, table: str) -> int:
    """Rows of this table that the session's transaction has read so far."""
    rows = connection._driver.run(  # type: ignore[attr-defined]
        "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relname = :table",
        table=table,
    )
    return int(rows[0][0])
