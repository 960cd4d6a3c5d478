"""Cancel against claim, finish and the end: whoever comes first, the task says one thing, and it is true."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from deadsure.runtime.model import Outcome
from deadsure.runtime.states import State
from deadsure.runtime.store import cancel
from kit.scale import count
from kit.store import Store, WorkerRow

ROUNDS = count(long=200, ci=40)
DONE = Outcome("succeeded", result="1")


def _together(*acts: Callable[[], object]) -> list[object]:
    """Start all at one gate, and return what each returned."""
    gate = threading.Barrier(len(acts))

    def act(one: Callable[[], object]) -> object:
        gate.wait(10)
        return one()

    with ThreadPoolExecutor(len(acts)) as threads:
        return [future.result(20) for future in [threads.submit(act, one) for one in acts]]


def test_cancel_against_claim_either_prevents_the_run_or_is_seen_by_it(store: Store) -> None:
    worker, other = store.worker(), store.connect()
    seen: set[str] = set()
    for _ in range(ROUNDS):
        task = store.submit("failing")
        claimed, _ = _together(worker.claim, lambda task=task: cancel.cancel(other, task, "test"))
        row = store.row(task)
        seen.add(str(row["state"]))
        if claimed is None:
            # It was canceled first; a claim that dropped its row has run nothing.
            assert (row["state"], row["attempts"]) == ("canceled", 0)
        else:
            assert (row["state"], row["cancel_requested"]) == ("running", True)
            assert worker.finish(claimed, DONE).finished is State.CANCELED  # type: ignore[arg-type]
        assert store.query("select * from deadsure.ready") == [] or _drop(worker, store) == []
    print(f"seen: {sorted(seen)}")


def _drop(worker: WorkerRow, store: Store) -> list[dict[str, object]]:
    """A row that the cancel could not remove, because the claim held it, is dropped by the next claim."""
    assert worker.claim() is None
    return store.query("select * from deadsure.ready")


@pytest.mark.parametrize(("kind", "late"), [("failing", "succeeded"), ("plain", "succeeded")])
def test_cancel_against_finish_leaves_one_terminal_state(store: Store, kind: str, late: str) -> None:
    worker, other = store.worker(), store.connect()
    for _ in range(ROUNDS):
        task = store.submit(kind)
        claimed = worker.claim()
        assert claimed is not None
        step, _ = _together(
            lambda claimed=claimed: worker.finish(claimed, DONE),
            lambda task=task: cancel.cancel(other, task, "test"),
        )
        row = store.row(task)
        assert row["state"] == step.finished  # type: ignore[attr-defined]
        if row["cancel_requested"] and kind == "failing":
            assert (row["state"], row["result"]) == ("canceled", None)
        else:
            # Done before the cancel came, or a kind whose completion counts in spite of it.
            assert (row["state"], row["result"]) == (late, 1)


def test_cancel_of_what_has_ended_changes_nothing(store: Store) -> None:
    worker = store.worker()
    for _ in range(ROUNDS // 4):
        task = store.submit("plain")
        claimed = worker.claim()
        assert claimed is not None
        worker.finish(claimed, DONE)
        before = store.row(task)
        cancel.cancel(store.connection, task, "test")
        assert store.row(task) == before


def test_two_cancels_at_once_are_one(store: Store) -> None:
    first, second = store.connect(), store.connect()
    for _ in range(ROUNDS // 4):
        task: UUID = store.submit("plain")
        _together(lambda task=task: cancel.cancel(first, task, "a"), lambda task=task: cancel.cancel(second, task, "b"))
        assert store.row(task)["state"] == "canceled"
        told = store.query("select 1 as one from deadsure.events where task_id = :t", t=task)
        assert len(told) == 1
