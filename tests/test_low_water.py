"""Where a worker looks: from its mark, and from the start often enough that nothing waits long. What a conflict is."""

from __future__ import annotations

import pytest
from deadsure.runtime.model import Wanted
from deadsure.runtime.store import hot
from deadsure.supervisor.low_water import LowWater
from kit.store import KINDS, Store, WorkerRow


def claim(worker: WorkerRow, marks: LowWater) -> object:
    claimed = worker.claim(Wanted(marks.places(), KINDS))
    if claimed is not None:
        marks.found(claimed)
    return claimed and claimed.id


def test_a_worker_looks_on_from_its_mark_and_then_from_the_start(store: Store) -> None:
    marks, worker = LowWater(("default",), full_every=3600), store.worker()
    tasks = [store.submit() for _ in range(3)]
    marks.places()
    assert claim(worker, marks) == tasks[0]
    urgent = store.submit(priority=-1)
    assert claim(worker, marks) == tasks[1]
    assert claim(worker, marks) == tasks[2]
    assert claim(worker, marks) == urgent
    assert claim(worker, marks) is None


def test_a_look_from_the_start_finds_the_most_urgent_first(store: Store) -> None:
    marks, worker = LowWater(("default",), full_every=0), store.worker()
    tasks = [store.submit() for _ in range(2)]
    assert claim(worker, marks) == tasks[0]
    urgent = store.submit(priority=-1)
    assert claim(worker, marks) == urgent
    assert claim(worker, marks) == tasks[1]


def test_a_queue_without_a_mark_is_looked_at_in_its_configured_order(store: Store) -> None:
    marks, worker = LowWater(("high", "low"), full_every=3600), store.worker()
    low = [store.submit(queue="low") for _ in range(2)]
    assert claim(worker, marks) == low[0]
    high = store.submit(queue="high")
    assert claim(worker, marks) == high
    assert claim(worker, marks) == low[1]


def test_a_claim_that_passes_over_a_row_which_another_worker_holds_is_a_conflict(store: Store) -> None:
    first, second = store.submit(), store.submit()
    wanted = Wanted.from_queues(["default"], KINDS)
    holder, other = store.worker(), store.worker()
    with holder.connection.transaction():
        step = hot.claim(holder.connection, holder.slot, wanted)
        assert step.claimed is not None
        assert (step.claimed.id, step.conflict) == (first, False)
        passed = hot.claim(other.connection, other.slot, wanted)
        assert passed.claimed is not None
        assert (passed.claimed.id, passed.conflict) == (second, True)
        nothing = hot.claim(other.connection, passed.slot, wanted)
        assert (nothing.claimed, nothing.conflict) == (None, True)


@pytest.mark.parametrize("queues", [("default",), ("empty", "default")])
def test_a_claim_that_meets_nobody_is_no_conflict(store: Store, queues: tuple[str, ...]) -> None:
    store.submit()
    worker = store.worker()
    wanted = Wanted.from_queues(queues, KINDS)
    step = hot.claim(worker.connection, worker.slot, wanted)
    assert step.claimed is not None
    assert not step.conflict
    assert not hot.claim(worker.connection, step.slot, wanted).conflict
