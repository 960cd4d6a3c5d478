"""What a step did, told to the counters as soon as its answer is known. Each function returns what it was handed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from ..events import note
from ..facts import Ended, Stepped
from ..model import Claimed, Step

if TYPE_CHECKING:
    from .batch import Done, ManyStep
    from .hot import Settlement


def one(step: Step, task: Claimed | None, kept: Sequence[Claimed], asked: bool, cause: str | None = None) -> Step:
    """A step with one task in hand, or none. `asked`: it also looked for work; `cause`: why the task is unknown."""
    ended = () if task is None else (Ended(task.kind, step.finished, cause),)
    if step.refused is not None:
        note(Stepped(ended))
        return step
    won = () if step.claimed is None else (step.claimed,)
    empty = asked and step.trusted and not won and not step.stale
    note(Stepped(ended, won, _names(kept, won), empty, step.conflict))
    return step


def many(step: ManyStep, done: Sequence[Done], kept: Sequence[Claimed], asked: bool) -> ManyStep:
    """A step with many. One that goes back unstarted has not been finished, unless it was canceled on the way."""
    states = step.finished or (None,) * len(done)
    ended = [
        Ended(entry.task.kind, state)
        for entry, state in zip(done, states, strict=True)
        if entry.outcome is not None or state == "canceled"
    ]
    if step.refused is not None or None in states:
        note(Stepped(ended))
        return step
    empty = asked and step.trusted and not step.claimed and not step.stale
    note(Stepped(ended, step.claimed, _names(kept, step.claimed), empty, step.conflict))
    return step


def read(found: Settlement, kept: Sequence[Claimed], ended: Sequence[Ended]) -> Settlement:
    """A step whose answer was lost, as it was found by reading."""
    if found.happened:
        note(Stepped(ended, found.claimed, _names(kept, found.claimed), read=True))
    return found


def _names(*held: Sequence[Claimed]) -> list[tuple[UUID, int]]:
    return [(task.id, task.fence) for tasks in held for task in tasks]
