"""A worker's verbs for effects and retries: the check before a call, and the finish alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deadsure.runtime.db import Connection
from deadsure.runtime.model import Claimed, Outcome, Slot, Step
from deadsure.runtime.store import effects
from deadsure.runtime.store.effects import Permission, Prepared

from .hands import SLOT_ENDED, hand, is_trusted, name, own, why_refused
from .rows import Event, Scheduled, Task, View


@dataclass(frozen=True)
class FinishAlone:
    """`effects.finish_alone`: an effect's end, a retry, `unknown`."""

    slot: Slot
    task: Claimed
    outcome: Outcome
    kept: Sequence[Claimed] = ()

    def send(self, connection: Connection) -> Step:
        return effects.finish_alone(connection, self.slot, self.task, self.outcome, self.kept)

    def shown(self, step: Step) -> Any:
        return (step.refused.name,) if step.refused is not None else (step.finished,)

    def predict(self, view: View) -> Any:
        row = own(view, self.slot)
        if row is None:
            return SLOT_ENDED
        task = hand(view, row, self.task)
        if task is None:
            return (why_refused(view, self.task.id),)
        self._end(view, task)
        name(view, row, self.slot.following, [], self.kept)
        return (view.get("task", task.id).state,)

    def _end(self, view: View, task: Task) -> None:
        end = self.outcome.effect
        if task.perform_fence != task.fence:
            still_open = task.unsettled
        else:
            still_open = task.unsettled_earlier if end is None or end.definite else True
        state = self._state(task, still_open)
        kept = still_open or state == "succeeded"
        cause = None
        if state == "unknown":
            cause = end.cause if self.outcome.state == "unknown" and end is not None else "unsettled_attempt"
        event = {"unknown": "unknown", "queued": "retry"}.get(state)
        ended = task.now(
            Event(event, state, task.fence) if event else None,
            state=state,
            owner=None,
            receipt=task.receipt or (state == "succeeded" and end is not None and end.receipt is not None),
            unsettled=state != "succeeded" and still_open,
            unsettled_earlier=False,
            sender="gone",
            performed=task.performed if kept else None,
            cause=cause,
            needs=(end.needs if end else "decision") if state == "unknown" else None,
        )
        view.put("task", ended)
        if state == "queued":
            view.put("scheduled", Scheduled(ended.id))
        elif state == "unknown":
            view.unknown(ended)

    def _state(self, task: Task, still_open: bool) -> str:
        end, outcome = self.outcome.effect, self.outcome.state
        if outcome == "succeeded" and end is not None and end.receipt is None:
            return "unknown"
        if outcome in ("succeeded", "unknown"):
            return outcome
        if outcome == "retry" and not task.cancel_requested and task.attempts < task.max_attempts:
            return "queued"
        if still_open:
            return "unknown"
        if task.cancel_requested and (outcome == "canceled" or (outcome == "retry" and end is not None)):
            return "canceled"
        return "failed"


@dataclass(frozen=True)
class BeforeCall:
    """`effects.before_call`: the last check, and the note that it may have happened."""

    slot: Slot
    task: Claimed
    what: Prepared
    timeout: float
    retention: float | None

    def send(self, connection: Connection) -> Permission:
        return effects.before_call(connection, self.slot, self.task, self.what, self.timeout, self.retention)

    def shown(self, permission: Permission) -> Any:
        return permission.verdict, permission.earlier

    def predict(self, view: View) -> Any:
        row = own(view, self.slot)
        task = hand(view, row, self.task) if row is not None else None
        if row is None or task is None:
            return None, False
        earlier = task.unsettled_earlier if task.perform_fence == task.fence else task.unsettled
        verdict = self._verdict(task, earlier, is_trusted(view, row))
        if verdict == "go":
            performed = task.performed if earlier or task.perform_fence == task.fence else "remembered"
            noted = task.now(
                unsettled=True,
                unsettled_earlier=earlier,
                perform_fence=task.fence,
                performed=performed,
                identity=self.what.identity,
                sender=None,
            )
            view.put("task", noted)
        return verdict, earlier

    def _verdict(self, task: Task, earlier: bool, trusted: bool) -> str:
        if task.cancel_requested:
            return "canceled"
        if not trusted:
            return "untrusted"
        if earlier and task.identity != self.what.identity:
            return "provider_changed"
        forgotten = self.retention is None or task.performed == "forgotten"
        return "retention_passed" if earlier and task.performed is not None and forgotten else "go"
