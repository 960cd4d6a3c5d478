"""What a worker's verbs have in common, on the model: the slot, the task in hand, and the claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from deadsure.runtime.model import Claimed, Kind, Outcome, Place, Slot, Wanted
from deadsure.runtime.states import OnDeath

from .rows import TERMINAL, Ready, Refused, SlotRow, Task, View

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
SLOT_ENDED = ("SLOT_ENDED",)


def is_trusted(view: View, row: SlotRow) -> bool:
    """Whether the slot's lease is valid."""
    return not view.incarnation(row.incarnation).over


def why_refused(view: View, id: UUID) -> str:
    task = view.task(id)
    if task is None:
        return "NO_SUCH_TASK"
    return "ALREADY_FINISHED" if task.state in TERMINAL else "NOT_YOURS"


def batchable(task: Task) -> bool:
    """What ready says of a task that was never tried."""
    return task.on_death == "requeue" and task.max_attempts >= 2 and task.attempts == 0


def own(view: View, slot: Slot) -> SlotRow | None:
    row = view.slot(slot.id)
    if row is None or row.ended or row.token != slot.token:
        return None
    view.lock("slot", slot.id)
    return row


def hand(view: View, row: SlotRow, claimed: Claimed) -> Task | None:
    task = view.task(claimed.id)
    if task is None or (task.state, task.fence, task.owner) != ("running", claimed.fence, row.id):
        return None
    view.lock("task", task.id)
    return task


def finish(view: View, row: SlotRow, claimed: Claimed, outcome: Outcome) -> str | None:
    task = hand(view, row, claimed)
    if task is None:
        return None
    state = "succeeded"
    if outcome.state == "failed" or (outcome.state == "canceled" and not task.cancel_requested):
        state = "failed"
    elif outcome.state == "canceled" or (task.cancel_requested and task.on_death != OnDeath.UNKNOWN):
        state = "canceled"
    if task.unsettled:
        raise Refused("23514")
    view.put("task", task.now(state=state, owner=None))
    return state


def release(view: View, row: SlotRow, claimed: Claimed) -> str | None:
    task = hand(view, row, claimed)
    if task is None:
        return None
    state = "canceled" if task.cancel_requested else "queued"
    if state == "canceled" and task.unsettled:
        raise Refused("23514")
    back = task.now(state=state, owner=None, attempts=task.attempts - 1)
    view.put("task", back)
    if state == "queued":
        view.put("ready", Ready(back.id, back.queue, back.priority, back.kind, batchable(back)))
    return state


def pick(view: View, wanted: Wanted) -> Ready | None:
    names = {kind.name for kind in wanted.kinds}
    for place in wanted.places:
        for row in view.ready(place.queue):
            if row.kind in names and row.position >= position(place) and view.free("ready", row.id):
                return row
    return None


def position(place: Place) -> tuple[Any, ...]:
    at = _LONG_AGO if place.run_at == "-infinity" else datetime.fromisoformat(place.run_at)
    return (place.priority, at, place.id)


def claim(view: View, row: SlotRow, picked: Iterable[Ready], wanted: Wanted) -> list[Task]:
    declared: dict[str, Kind] = {kind.name: kind for kind in wanted.kinds}
    claimed = []
    for ready in picked:
        view.drop("ready", ready.id)
        task = view.task(ready.id)
        if task is None or task.state != "queued":
            continue
        view.lock("task", task.id)
        mine = task.now(
            state="running",
            fence=task.fence + 1,
            attempts=task.attempts + 1,
            owner=row.id,
            on_death=str(declared[task.kind].on_death),
        )
        view.put("task", mine)
        claimed.append(mine)
    return claimed


def name(view: View, row: SlotRow, token: int, claimed: Sequence[Task], kept: Sequence[Claimed] = ()) -> None:
    names = {(task.id, task.fence) for task in claimed} | {(task.id, task.fence) for task in kept}
    view.put("slot", replace(row, token=token, names=frozenset(names)))


def names(claimed: Iterable[Claimed]) -> tuple[tuple[UUID, int, int], ...]:
    return tuple((task.id, task.fence, task.attempt) for task in claimed)


def names_of(claimed: Iterable[Task]) -> tuple[tuple[UUID, int, int], ...]:
    return tuple((task.id, task.fence, task.attempts) for task in claimed)
