"""The recoveries, by their three proofs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from deadsure.runtime.db import Connection
from deadsure.runtime.model import ExitProof, LockIdentity, LockProof, Settled
from deadsure.runtime.store import recover

from .kinds import needs
from .pools import POOL
from .rows import Event, Incarnation, Ready, Task, View


@dataclass(frozen=True)
class RecoverWorker:
    """`recover.recover_worker`."""

    slot: UUID
    proof: ExitProof

    def send(self, connection: Connection) -> list[Settled]:
        return recover.recover_worker(connection, self.slot, self.proof)

    def shown(self, answer: list[Settled]) -> Any:
        return _shown(answer)

    def predict(self, view: View) -> Any:
        gone = self.proof.evidence.get("senders_gone") is True
        return settle(view, [self.slot], "exit", gone) or _before(view, [self.slot], "exit")


@dataclass(frozen=True)
class RecoverPool:
    """`recover.recover_pool`."""

    incarnation: UUID
    lock: LockIdentity

    def send(self, connection: Connection) -> list[Settled]:
        return recover.recover_pool(connection, POOL, self.incarnation, LockProof(self.lock))

    def shown(self, answer: list[Settled]) -> Any:
        return _shown(answer)

    def predict(self, view: View) -> Any:
        mine = [row for row in view.model.all("incarnation") if row.lock == self.lock.id]
        ended = [row for row in mine if row.ended_by is None and row.id != self.incarnation]
        for row in ended:
            view.lock("incarnation", row.id)
            view.put("incarnation", replace(row, ended_by="pool_lock", died=view.model.tick()))
        if ended:
            return settle(view, _slots_of(view, ended), "pool_lock", False)
        # What an earlier call of mine has settled.
        born = view.incarnation(self.incarnation).born
        before = [row.id for row in mine if row.ended_by == "pool_lock" and row.died > born]
        slots = [slot.id for slot in view.model.all("slot") if slot.incarnation in before]
        return _before(view, slots, "pool_lock")


@dataclass(frozen=True)
class Sweep:
    """`recover.sweep`."""

    incarnation: UUID

    def send(self, connection: Connection) -> tuple[list[UUID], list[Settled]]:
        return recover.sweep(connection, self.incarnation)

    def shown(self, answer: tuple[list[UUID], list[Settled]]) -> Any:
        return frozenset(answer[0]), _shown(answer[1])

    def predict(self, view: View) -> Any:
        lost = [row for row in view.model.all("incarnation") if row.ended_by is None and row.over]
        ended = [row for row in lost if row.id != self.incarnation and view.free("incarnation", row.id)]
        for row in ended:
            view.put("incarnation", replace(row, ended_by="lease", died=view.model.tick()))
        settled = settle(view, _slots_of(view, ended), "lease", False)
        return frozenset(row.id for row in ended), settled


def settle(view: View, slots: Iterable[UUID], proof: str, senders_gone: bool) -> Any:
    """End these slots, then settle what they hold, in the order of the locks."""
    there = [slot for id in sorted(slots) if (slot := view.slot(id)) is not None]
    for slot in there:
        view.lock("slot", slot.id)
        view.put("slot", replace(slot, ended=True))
    tasks = sorted((task for slot in there for task in view.held(slot.names, slot.id)), key=lambda task: task.id)
    for task in tasks:
        view.lock("task", task.id)
    return frozenset(_settle_one(view, task, proof, senders_gone) for task in tasks)


def _settle_one(view: View, task: Task, proof: str, senders_gone: bool) -> Any:
    state = _verdict(task)
    unknown = state == "unknown"
    settled = task.now(
        Event("recovered", state, task.fence + 1, proof, task.attempts),
        state=state,
        fence=task.fence + 1,
        owner=None,
        cause=("lease_expired" if proof == "lease" else "worker_died") if unknown else None,
        needs=needs(task.kind) if unknown else None,
        sender="gone" if senders_gone else None,
    )
    view.put("task", settled)
    if state == "queued":
        view.put("ready", Ready(task.id, task.queue, task.priority, task.kind, False))
    elif unknown:
        view.unknown(settled)
    return settled.id, state, settled.fence, settled.attempts


def _verdict(task: Task) -> str:
    if task.unsettled or task.on_death == "unknown":
        return "unknown"
    if task.on_death == "fail":
        return "failed"
    if task.cancel_requested:
        return "canceled"
    return "queued" if task.attempts < task.max_attempts else "failed"


def _slots_of(view: View, ended: Sequence[Incarnation]) -> list[UUID]:
    ids = {row.id for row in ended}
    return [slot.id for slot in view.model.all("slot") if slot.incarnation in ids and not slot.ended]


def _before(view: View, slots: Iterable[UUID], proof: str) -> Any:
    """What an earlier recovery of these slots has settled, as the events have it."""
    return frozenset(
        (id, event.to, event.fence, event.attempt)
        for slot in map(view.slot, slots)
        if slot is not None and slot.ended
        for id, fence in slot.names
        if (task := view.task(id)) is not None
        for event in task.events
        if (event.event, event.fence, event.proof) == ("recovered", fence + 1, proof)
    )


def _shown(settled: Sequence[Settled]) -> Any:
    return frozenset((task.id, str(task.state), task.fence, task.attempts) for task in settled)
