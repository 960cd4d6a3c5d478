"""The verbs of the doors: submit, cancel, ask now, decide; and prune."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from deadsure.runtime.db import Connection
from deadsure.runtime.store import cancel, prune, reconcile, submit
from deadsure.runtime.store.reconcile import Decision, Undecided
from deadsure.runtime.store.submit import Accepted, KeyTaken, Submission, Verdict

from .hands import batchable
from .kinds import BY_NAME, can_settle, contract_of
from .rows import TERMINAL, Event, Ready, Scheduled, Task, Unknown, View
from .sessions import Verb


@dataclass(frozen=True)
class Key:
    """An idempotency key: which task has it, and what was asked for."""

    id: str
    task: UUID
    asked: tuple[Any, ...]


@dataclass(frozen=True)
class Submit:
    """`submit.submit`, or `submit.submit_all`: all of them or none."""

    tasks: Sequence[Submission]
    together: bool

    def send(self, connection: Connection) -> list[Verdict]:
        return (submit.submit_all if self.together else submit.submit)(connection, self.tasks)

    def shown(self, verdicts: list[Verdict]) -> Any:
        return tuple(_shown(verdict) for verdict in verdicts)

    def predict(self, view: View) -> Any:
        for task in sorted(self.tasks, key=lambda task: (task.key is None, task.key, task.id)):
            self._store(view, task)
        verdicts = [self._verdict(view, task) for task in self.tasks]
        if self.together and any(said not in ("Accepted", "Replayed") for said, _ in verdicts):
            mine = {task.id for task in self.tasks}
            view.changed.clear()
            verdicts = [(said, None if said == "KeyTaken" and id in mine else id) for said, id in verdicts]
        return tuple(verdicts)

    def _store(self, view: View, task: Submission) -> None:
        kind = BY_NAME.get(task.kind)
        if kind is None or not 1 <= (task.max_attempts or kind.max_attempts) <= kind.max_attempts:
            return
        view.wait_for_change("task", task.id)
        if view.get("task", task.id) is not None:
            return
        if task.key is not None:
            view.wait_for_change("key", task.key)
            there: Key | None = view.get("key", task.key)
            if there is not None:
                return view.wait_for_change("task", there.task)
        queue, priority = task.queue or kind.queue, kind.priority if task.priority is None else task.priority
        budget = task.max_attempts or kind.max_attempts
        made = Task(task.id, task.kind, queue, priority, str(kind.on_death), budget, task.key)
        view.put("task", made)
        if task.key is not None:
            view.put("key", Key(task.key, task.id, _asked(task)))
        if task.run_at is None:
            view.put("ready", Ready(made.id, made.queue, made.priority, made.kind, batchable(made)))
        else:
            view.put("scheduled", Scheduled(made.id))

    def _verdict(self, view: View, task: Submission) -> tuple[str, UUID | None]:
        if view.get("task", task.id) is not None:
            return "Accepted", task.id
        key: Key | None = view.get("key", task.key) if task.key is not None else None
        if key is not None:
            return ("Replayed" if key.asked == _asked(task) else "KeyTaken"), key.task
        return ("UnknownKind" if task.kind not in BY_NAME else "BudgetExceeded"), None


@dataclass(frozen=True)
class Cancel(Verb):
    """`cancel.cancel`."""

    id: UUID
    request: UUID

    def send(self, connection: Connection) -> Any:
        return cancel.cancel(connection, self.id, "somebody", self.request)

    def predict(self, view: View) -> Any:
        task = view.task(self.id)
        if task is None or task.state in TERMINAL or (task.state != "queued" and task.cancel_requested):
            return dict(task.requests).get(self.request) if task is not None else None
        view.lock("task", task.id)
        state, cause, needed = task.state, task.cause, task.needs
        if task.state == "queued":
            state = "unknown" if task.unsettled else "canceled"
        if task.state == "queued" and task.unsettled:
            cause, needed = "unsettled_attempt", "lookup" if contract_of(task.kind).lookup else "decision"
        canceled = task.now(
            Event("cancel_requested", state, task.fence),
            state=state,
            cause=cause,
            needs=needed,
            cancel_requested=True,
            requests=(*task.requests, (self.request, state)),
        )
        view.put("task", canceled)
        if state != "running":
            self._take_away(view)
        if state == "unknown":
            view.wait_for_change("unknown", task.id)
        if task.state == "queued" and state == "unknown":
            view.unknown(canceled)
        return state

    def _take_away(self, view: View) -> None:
        if view.first_seen("ready", self.id) and view.free("ready", self.id):
            view.drop("ready", self.id)
        if view.first_seen("scheduled", self.id) and view.free("scheduled", self.id):
            view.drop("scheduled", self.id)


@dataclass(frozen=True)
class AskNow(Verb):
    """`reconcile.ask_now`."""

    id: UUID

    def send(self, connection: Connection) -> Any:
        return reconcile.ask_now(connection, self.id)

    def predict(self, view: View) -> Any:
        task = view.task(self.id)
        if task is None:
            return None
        view.lock("task", task.id)
        row: Unknown | None = view.get("unknown", task.id) if view.first_seen("unknown", task.id) else None
        if row is not None and can_settle(task.kind):
            view.lock("unknown", task.id)
            view.put("unknown", replace(row, needs="lookup", due=True))
            if task.needs != "lookup":
                view.put("task", task.now(needs="lookup"))
        return task.state, can_settle(task.kind)


@dataclass(frozen=True)
class Resolve(Verb):
    """`reconcile.resolve`."""

    decision: Decision

    def send(self, connection: Connection) -> str:
        try:
            reconcile.resolve(connection, self.decision)
        except Undecided as error:
            return error.why
        return "decided"

    def predict(self, view: View) -> Any:
        asked = self.decision
        task = view.task(asked.task)
        if task is None:
            return "no_such_task"
        view.lock("task", task.id)
        if task.version == asked.version and task.state == "unknown":
            view.lock("decision", asked.id)
            view.lock("unknown", task.id)
            self._decide(view, task)
            return "decided"
        before: Made | None = view.get("decision", asked.id)
        if before is not None:
            return "decided" if replace(before.decision, version=asked.version) == asked else "other_decision"
        return "version" if task.version != asked.version else "state"

    def _decide(self, view: View, task: Task) -> None:
        state = self.decision.state
        settled = task.now(
            Event("resolved", state, task.fence), state=state, unsettled=False, cause=None, needs=None, decided=True
        )
        view.put("task", settled)
        view.put("decision", Made(self.decision.id, self.decision))
        view.drop("unknown", task.id)


@dataclass(frozen=True)
class Made:
    """A row of decisions."""

    id: UUID
    decision: Decision


@dataclass(frozen=True)
class Prune(Verb):
    """`prune`, of everything that is over."""

    def send(self, connection: Connection) -> int:
        horizon = prune.horizon(connection, 0.0)
        old = [id for page in prune.old_tasks(connection, horizon) for id in page]
        return prune.remove_tasks(connection, horizon, old, lambda kept: None)

    def predict(self, view: View) -> Any:
        gone = [task for task in view.model.all("task") if task.state in TERMINAL and self._may_go(view, task.id)]
        for task in gone:
            view.drop("task", task.id)
            if task.key is not None:
                view.drop("key", task.key)
            if view.first_seen("ready", task.id):
                view.drop("ready", task.id)
            for made in view.model.all("decision"):
                if made.decision.task == task.id:
                    view.drop("decision", made.id)
        return len(gone)

    def _may_go(self, view: View, id: UUID) -> bool:
        """Nobody holds the task, and nothing of it will be left in ready or scheduled."""
        if view.first_seen("scheduled", id) or not view.free("task", id):
            return False
        return not view.first_seen("ready", id) or view.free("ready", id)


def _asked(task: Submission) -> tuple[Any, ...]:
    run_at: datetime | None = task.run_at
    return (task.kind, task.payload, task.queue, task.priority, run_at, task.max_attempts, task.timeout)


def _shown(verdict: Verdict) -> tuple[str, UUID | None]:
    if isinstance(verdict, Accepted):
        return ("Replayed" if verdict.replayed else "Accepted"), verdict.task.id
    return type(verdict).__name__, verdict.id if isinstance(verdict, KeyTaken) else None
