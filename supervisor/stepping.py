"""A worker's dealings with the store: one step after the other, whatever happens to the connection.

A step is sent again only when it surely did not happen: after a refusal by the server, or after the slot was taken over
on a new connection and said so. Nothing is judged before that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..runtime import db, events, executor, sql
from ..runtime.errors import DatabaseUnavailable, InDoubt, NotStorable, StatementRefused, StoreError
from ..runtime.model import Claimed, EffectEnd, Outcome, Refusal, Slot, Step, Wanted
from ..runtime.store import effects, hot

T = TypeVar("T")
_BACKEND = sql.statement("backend_identity")
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
#: SQLSTATE classes that speak of the value sent: data exception, program limit exceeded.
_DATA_EXCEPTIONS = ("22", "54")


class Stepper:
    """One connection and one slot. `pause(seconds)` waits between attempts, and may raise to end them."""

    def __init__(self, settings: db.Settings, name: str, slot: Slot, pause: Callable[[float], None]) -> None:
        self.slot = slot
        self._settings = settings
        self._name = name
        self._pause = pause
        self._connection: db.Connection | None = None

    def step(self, task: Claimed | None, outcome: Outcome | None, wanted: Wanted) -> Step:
        """Finish the task in hand and claim the next one, as often as it takes to know what happened.

        `Step.stale` is also set where only the finish was wanted, or could be done: ask again at once.
        """
        while True:
            try:
                step = self._send(task, outcome, wanted)
                break
            except (StatementRefused, NotStorable) as error:
                # Surely not done. The finish alone, then (in the next step) the claim alone.
                outcome = self._refused(outcome, error)
                wanted = hot.NOWHERE if task is not None else wanted
            except (InDoubt, DatabaseUnavailable) as error:
                if isinstance(error, InDoubt):
                    claims = bool(wanted.places) and _on_hot_path(outcome)
                    events.emit("a step is in doubt", task=task and str(task.id), claims=claims, error=str(error))
                settled = self._settle(task)
                if settled is not None:
                    step = settled
                    break
        self.slot = step.slot
        return step if wanted.places else replace(step, stale=True)

    def ask(self, work: Callable[[db.Connection, Slot], T]) -> T:
        """Run a statement that may be repeated until it has an answer."""
        while True:
            try:
                return work(self.connected(), self.slot)
            except StoreError as error:
                events.emit("a statement was not answered", error=str(error))
                time.sleep(FIRST_PAUSE)

    def connected(self) -> db.Connection:
        """The connection; a new one as often as it takes, while the database is away."""
        pause = FIRST_PAUSE
        while self._connection is None or not self._connection.usable:
            try:
                connection = db.connect(self._settings, self._name)
                connection.identify(_BACKEND)
                self._connection = connection
            except StoreError as error:
                if pause == FIRST_PAUSE:
                    events.emit("the worker waits for the database", error=str(error))
                self._pause(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
        return self._connection

    def _send(self, task: Claimed | None, outcome: Outcome | None, wanted: Wanted) -> Step:
        if task is None or outcome is None or _on_hot_path(outcome):
            return hot.finish_and_claim(self.connected(), self.slot, task, outcome, wanted)
        return effects.finish_alone(self.connected(), self.slot, task, outcome)

    def _refused(self, outcome: Outcome | None, error: StatementRefused | NotStorable) -> Outcome | None:
        """What to send after a refusal. A result that cannot be stored is the task's failure, not the database's."""
        events.emit("a statement was refused", error=str(error))
        time.sleep(FIRST_PAUSE)
        unstorable = isinstance(error, NotStorable) or error.sqlstate[:2] in _DATA_EXCEPTIONS
        if outcome is None or outcome.result is None or not unstorable:
            return outcome
        reason = f"result_not_storable: {executor.reason_of(error)}"
        if outcome.effect is None:
            return Outcome("failed", reason=reason)
        # It has happened, and its proof cannot be kept: that is no failure.
        return Outcome("unknown", reason=reason, effect=EffectEnd(False, outcome.effect.needs, "receipt_mismatch"))

    def _settle(self, task: Claimed | None) -> Step | None:
        """What a statement without an answer really did; None: nothing, send it again."""
        old = self._connection.backend if self._connection else None
        while True:
            try:
                found = hot.settle(self.connected(), self.slot, [task] if task else [], old)
                break
            except StoreError as error:
                events.emit("a lost answer is not settled yet", error=str(error))
                time.sleep(FIRST_PAUSE)
        if found.slot is None:
            return Step(self.slot, refused=Refusal.SLOT_ENDED)
        self.slot = found.slot
        if not found.happened:
            events.emit("a lost statement was not carried out", task=task and str(task.id))
            return None
        events.emit("a lost answer was settled by reading", task=str(task.id) if task else None)
        return Step(found.slot, claimed=found.claimed[0] if found.claimed else None, stale=True)


def _on_hot_path(outcome: Outcome | None) -> bool:
    """Whether one statement finishes and claims; every other outcome is finished alone."""
    return outcome is None or (outcome.effect is None and outcome.state not in ("retry", "unknown"))
