"""Settling `unknown` by a provider's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from deadsure.runtime.db import Connection
from deadsure.runtime.effects import Receipt
from deadsure.runtime.store import reconcile
from deadsure.runtime.store.reconcile import Doubt

from .hands import is_trusted
from .kinds import contract_of
from .rows import Event, Ready, Task, View
from .sessions import Verb


@dataclass(frozen=True)
class ClaimLookup:
    """`reconcile.claim_lookup`."""

    slot: UUID
    kinds: tuple[str, ...]

    def send(self, connection: Connection) -> Doubt | None:
        return reconcile.claim_lookup(connection, self.slot, self.kinds, 3600.0)

    def shown(self, doubt: Doubt | None) -> Any:
        return None if doubt is None else (doubt.id, doubt.fence, doubt.lookups)

    def predict(self, view: View) -> Any:
        slot = view.slot(self.slot)
        if slot is None or slot.ended or not is_trusted(view, slot):
            return None
        for row in sorted(view.model.all("unknown"), key=lambda row: row.at):
            if row.needs == "lookup" and row.due and row.kind in self.kinds and view.free("unknown", row.id):
                view.put("unknown", replace(row, due=False, lookups=row.lookups + 1))
                task = view.task(row.id)
                assert task is not None
                return task.id, task.fence, row.lookups + 1
        return None


@dataclass(frozen=True)
class Found(Verb):
    """`reconcile.found`."""

    doubt: Doubt
    receipt: Receipt

    def send(self, connection: Connection) -> bool:
        return reconcile.found(connection, self.doubt, self.receipt)

    def predict(self, view: View) -> Any:
        task = _unknown(view, self.doubt)
        if task is None:
            return False
        view.lock("unknown", task.id)
        event = Event("reconciled", "succeeded", task.fence)
        settled = task.now(event, state="succeeded", receipt=True, unsettled=False, cause=None, needs=None)
        view.put("task", settled)
        view.drop("unknown", task.id)
        return True


@dataclass(frozen=True)
class Absent(Verb):
    """`reconcile.absent`. `settled_before`: what had been sent had settled before the lookup began."""

    doubt: Doubt
    settled_before: bool

    def send(self, connection: Connection) -> Any:
        return reconcile.absent(connection, self.doubt, contract_of(self.doubt.kind))

    def predict(self, view: View) -> Any:
        task = _unknown(view, self.doubt)
        if task is None:
            return None
        view.lock("unknown", task.id)
        verdict = self._verdict(task)
        row = view.get("unknown", task.id)
        event = Event("reconciled", "queued" if verdict == "queued" else "unknown", task.fence)
        if verdict == "queued":
            by_lookup_alone = not contract_of(task.kind).dedups_by_key
            unsettled = task.unsettled and not by_lookup_alone
            back = task.now(event, state="queued", unsettled=unsettled, cause=None, needs=None)
            view.put("task", back)
            view.put("ready", Ready(task.id, task.queue, task.priority, task.kind, False))
            view.drop("unknown", task.id)
            return verdict
        needed = "lookup" if verdict == "later" else "decision"
        cause = "retention_passed" if verdict == "retention_passed" else task.cause
        view.put("task", task.now(event, needs=needed, cause=cause))
        # Settled since: the time of the next lookup is in the past.
        due = task.sender == "settled" if verdict == "later" else row.due
        view.put("unknown", replace(row, needs=needed, due=due))
        return verdict

    def _verdict(self, task: Task) -> str:
        contract = contract_of(task.kind)
        if task.cancel_requested or task.attempts >= task.max_attempts:
            return "decision"
        if task.performed == "forgotten":
            return "retention_passed"
        if contract.dedups_by_key:
            return "queued"
        if not contract.lookup or task.sender is None:
            return "decision"
        return "queued" if task.sender == "settled" and self.settled_before else "later"


@dataclass(frozen=True)
class Mismatch(Verb):
    """`reconcile.mismatch`."""

    doubt: Doubt
    receipt: Receipt

    def send(self, connection: Connection) -> bool:
        return reconcile.mismatch(connection, self.doubt, self.receipt, "another amount")

    def predict(self, view: View) -> Any:
        task = _unknown(view, self.doubt)
        if task is None:
            return False
        view.lock("unknown", task.id)
        event = Event("receipt_mismatch", None, task.fence)
        view.put("task", task.now(event, cause="receipt_mismatch", needs="decision"))
        view.put("unknown", replace(view.get("unknown", task.id), needs="decision"))
        return True


@dataclass(frozen=True)
class Unavailable(Verb):
    """`reconcile.unavailable`."""

    doubt: Doubt

    def send(self, connection: Connection) -> bool:
        return reconcile.unavailable(connection, self.doubt, 3600.0)

    def predict(self, view: View) -> Any:
        task = view.task(self.doubt.id)
        if task is None or task.state != "unknown" or task.fence != self.doubt.fence:
            return False
        view.lock("unknown", task.id)
        view.put("unknown", replace(view.get("unknown", task.id), due=False))
        return True


def _unknown(view: View, doubt: Doubt) -> Task | None:
    task = view.task(doubt.id)
    if task is None or task.state != "unknown" or task.fence != doubt.fence:
        return None
    view.lock("task", task.id)
    return task
