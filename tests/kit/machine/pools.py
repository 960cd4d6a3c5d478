"""A supervisor's verbs: leases, slots, and the promotion of what is due."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from deadsure.runtime.db import Connection
from deadsure.runtime.model import LockIdentity, Slot
from deadsure.runtime.store import pool

from .hands import batchable
from .rows import Incarnation, Ready, SlotRow, View
from .sessions import Verb

POOL = "default"


@dataclass(frozen=True)
class Register(Verb):
    """`pool.register_incarnation`."""

    id: UUID
    token: int
    lock: LockIdentity

    def send(self, connection: Connection) -> None:
        pool.register_incarnation(connection, self.id, POOL, self.token, 3600.0, self.lock, "here", 1)

    def predict(self, view: View) -> Any:
        view.put("incarnation", Incarnation(self.id, self.lock.id, self.token, view.model.tick()))


@dataclass(frozen=True)
class Renew(Verb):
    """`pool.renew`."""

    id: UUID
    tokens: tuple[int, ...]
    following: int

    def send(self, connection: Connection) -> bool:
        return bool(pool.renew(connection, self.id, self.tokens, self.following, 3600.0))

    def predict(self, view: View) -> Any:
        row = view.incarnation(self.id)
        if row.ended_by is not None or row.token not in self.tokens:
            return False
        view.lock("incarnation", row.id)
        view.put("incarnation", replace(row, token=self.following, over=False))
        return True


@dataclass(frozen=True)
class RegisterSlot(Verb):
    """`pool.register_slot`."""

    slot: Slot
    incarnation: UUID

    def send(self, connection: Connection) -> bool:
        return pool.register_slot(connection, self.slot, self.incarnation, 1)

    def predict(self, view: View) -> Any:
        if view.incarnation(self.incarnation).ended_by is not None:
            return False
        view.lock("incarnation", self.incarnation, shared=True)
        view.wait_for_change("slot", self.slot.id)
        if view.slot(self.slot.id) is None:  # a repeat writes nothing
            view.lock("slot", self.slot.id)
            view.put("slot", SlotRow(self.slot.id, self.incarnation, self.slot.token))
        return True


@dataclass(frozen=True)
class EndIncarnation(Verb):
    """`pool.end_incarnation`."""

    id: UUID

    def send(self, connection: Connection) -> bool:
        return pool.end_incarnation(connection, self.id)

    def predict(self, view: View) -> Any:
        view.lock("incarnation", self.id)
        row = view.incarnation(self.id)
        slots = [slot for slot in view.model.all("slot") if slot.incarnation == self.id]
        if row.ended_by is not None or not all(slot.ended for slot in slots):
            return False
        view.put("incarnation", replace(row, ended_by="exit", died=view.model.tick()))
        return True


@dataclass(frozen=True)
class Promote(Verb):
    """`pool.promote`."""

    def send(self, connection: Connection) -> int:
        return pool.promote(connection)

    def predict(self, view: View) -> Any:
        moved = 0
        for row in view.model.all("scheduled"):
            if not row.due or not view.free("scheduled", row.id):
                continue
            view.drop("scheduled", row.id)
            task = view.task(row.id)
            if task is not None and task.state == "queued":
                view.put("ready", Ready(task.id, task.queue, task.priority, task.kind, batchable(task)))
                moved += 1
        return moved
