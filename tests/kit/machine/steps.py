"""A worker's verbs of the hot path: claim and finish, one or many; and settling a lost answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deadsure.runtime.db import Backend, Connection
from deadsure.runtime.model import Claimed, Outcome, Slot, Step, Wanted
from deadsure.runtime.store import batch, hot
from deadsure.runtime.store.batch import Done, ManyStep
from deadsure.runtime.store.hot import Settlement

from .hands import SLOT_ENDED, claim, finish, is_trusted, name, names, names_of, own, pick, release, why_refused
from .rows import Ready, View


@dataclass(frozen=True)
class HotStep:
    """`hot.finish_and_claim`: with no task a claim, with nowhere to look a finish."""

    slot: Slot
    task: Claimed | None
    outcome: Outcome | None
    wanted: Wanted

    def send(self, connection: Connection) -> Step:
        return hot.finish_and_claim(connection, self.slot, self.task, self.outcome, self.wanted)

    def shown(self, step: Step) -> Any:
        if step.refused is not None:
            return (step.refused.name,)
        return step.finished, names([step.claimed] if step.claimed else []), step.stale, step.trusted

    def predict(self, view: View) -> Any:
        row = own(view, self.slot)
        if row is None:
            return SLOT_ENDED
        finished = None
        if self.task is not None and self.outcome is not None:
            finished = finish(view, row, self.task, self.outcome)
            if finished is None:
                return (why_refused(view, self.task.id),)
        trusted = is_trusted(view, row)
        picked = pick(view, self.wanted) if trusted else None
        claimed = claim(view, row, [picked] if picked else [], self.wanted)
        name(view, row, self.slot.following, claimed)
        return finished, names_of(claimed), picked is not None and not claimed, trusted


@dataclass(frozen=True)
class ManySteps:
    """`batch.finish_and_claim_many`."""

    slot: Slot
    done: Sequence[Done]
    kept: Sequence[Claimed]
    wanted: Wanted
    size: int

    def send(self, connection: Connection) -> ManyStep:
        return batch.finish_and_claim_many(connection, self.slot, self.done, self.kept, self.wanted, self.size)

    def shown(self, step: ManyStep) -> Any:
        if step.refused is not None:
            return (step.refused.name,)
        return step.finished, names(step.claimed), step.stale, step.trusted

    def predict(self, view: View) -> Any:
        row = own(view, self.slot)
        if row is None:
            return SLOT_ENDED
        finished = tuple(
            release(view, row, entry.task) if entry.outcome is None else finish(view, row, entry.task, entry.outcome)
            for entry in self.done
        )
        trusted = is_trusted(view, row)
        if None in finished:
            return finished, (), False, trusted
        picked = self._picked(view) if trusted else []
        claimed = claim(view, row, picked, self.wanted)
        name(view, row, self.slot.following, claimed, self.kept)
        return finished, names_of(claimed), bool(picked) and not claimed, trusted

    def _picked(self, view: View) -> list[Ready]:
        head = pick(view, self.wanted)
        if head is None:
            return []
        together = {kind.name for kind in self.wanted.kinds if kind.batchable}
        picked = [head]
        names = {kind.name for kind in self.wanted.kinds}
        behind = [r for r in view.ready(head.queue) if r.position > head.position and r.kind in names][: self.size - 1]
        for row in [head, *behind]:
            if not (row.batchable and row.kind in together):
                break
            if row is not head and view.free("ready", row.id):
                picked.append(row)
        return picked


@dataclass(frozen=True)
class Settle:
    """`hot.settle`: what a lost statement really did."""

    slot: Slot
    done: Sequence[Claimed]
    kept: Sequence[Claimed]
    old: Backend | None = None

    def send(self, connection: Connection) -> Settlement:
        return hot.settle(connection, self.slot, self.done, self.kept, self.old)

    def shown(self, found: Settlement) -> Any:
        return found.slot is None, found.happened, frozenset(names(found.claimed))

    def predict(self, view: View) -> Any:
        row = view.slot(self.slot.id)
        if row is None or row.token not in (self.slot.token, self.slot.following, self.slot.taken_over):
            return True, False, frozenset()
        view.lock("slot", row.id)
        view.put("slot", replace(row, token=self.slot.taken_over))
        finishing = {(task.id, task.fence) for task in self.done}
        if row.ended:
            return True, False, frozenset()
        if finishing and finishing <= row.names:
            return False, False, frozenset()
        new = row.names - {(task.id, task.fence) for task in self.kept}
        mine = {(task.id, task.fence) for task in view.held(row.names, row.id)} & new
        return False, bool(finishing or mine), frozenset((*name, view.get("task", name[0]).attempts) for name in mine)
