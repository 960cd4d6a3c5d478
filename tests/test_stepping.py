"""A worker's step whose answer was lost: the slot says what happened, and nothing is sent again before that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from deadsure.runtime import db
from deadsure.runtime.errors import InDoubt
from deadsure.runtime.model import Outcome, Step
from deadsure.runtime.store import hot
from deadsure.supervisor.stepping import Stepper
from kit.store import WANTED, Store

DONE = Outcome("succeeded", result="1")


@pytest.fixture
def stepper(store: Store) -> Iterator[Stepper]:
    made = Stepper(store.settings, "stepper", store.worker().slot, lambda seconds: None)
    yield made
    made.connected().close()


def _lose_one(monkeypatch: pytest.MonkeyPatch, *, carried_out: bool) -> list[Step]:
    """The answer to the next hot statement is lost. Returns a list for what nobody heard."""
    send: Callable[..., Step] = hot.finish_and_claim
    unheard: list[Step] = []

    def send_and_lose(connection: db.Connection, *asked: Any) -> Step:
        monkeypatch.undo()
        if carried_out:
            unheard.append(send(connection, *asked))
        connection.discard()
        raise InDoubt("lost")

    monkeypatch.setattr(hot, "finish_and_claim", send_and_lose)
    return unheard


def test_what_was_carried_out_is_not_sent_again(
    store: Store, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (store.submit() for _ in range(3))
    claimed = stepper.step(None, None, WANTED).claimed
    assert claimed is not None
    unheard = _lose_one(monkeypatch, carried_out=True)
    step = stepper.step(claimed, DONE, WANTED)
    assert step.refused is None
    assert step.claimed == unheard[0].claimed
    states = [(store.row(task)["state"], store.row(task)["attempts"]) for task in (first, second, third)]
    assert states == [("succeeded", 1), ("running", 1), ("queued", 0)]


def test_what_was_not_carried_out_is_sent_again(
    store: Store, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = store.submit(), store.submit()
    claimed = stepper.step(None, None, WANTED).claimed
    assert claimed is not None
    _lose_one(monkeypatch, carried_out=False)
    step = stepper.step(claimed, DONE, WANTED)
    assert step.finished == "succeeded"
    assert store.row(first)["state"] == "succeeded"
    assert step.claimed is not None
    assert (step.claimed.id, step.claimed.attempt) == (second, 1)
