"""A worker's dealings with the store: one step after the other, whatever happens to the connection.

A step is sent again only when it surely did not happen: after a refusal by the server, or after the slot was taken over
on a new connection and said so. Nothing is judged before that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..runtime import db, events, executor
from ..runtime.errors import DatabaseUnavailable, InDoubt, NotStorable, StatementRefused, StoreError
from ..runtime.facts import StepLost
from ..runtime.model import Claimed, EffectEnd, Outcome, Refusal, Slot, Step, Wanted
from ..runtime.store import batch, effects, hot
from ..runtime.store.batch import Done, ManyStep
from ..runtime.store.sessions import Sessions

T = TypeVar("T")
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
#: SQLSTATE classes that speak of the value sent: data exception, program limit exceeded.
_DATA_EXCEPTIONS = ("22", "54")
_CHECK_VIOLATION = "23514"


class Stepper:
    """One connection and one slot. `pause(seconds)` waits between attempts, and may raise to end them."""

    def __init__(self, settings: db.Settings, name: str, slot: Slot, pause: Callable[[float], None]) -> None:
        self.slot = slot
        self._settings = settings
        self._pause = pause
        self._sessions = Sessions(name)
        self._hesitation = FIRST_PAUSE
        self._failed_at = float("-inf")

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
                _tell_doubt(error, [task] if task else [], bool(wanted.places) and _on_hot_path(outcome))
                settled = self._settle([task] if task else [], [])
                if settled is not None:
                    following = settled.claimed[0] if settled.claimed else None
                    step = Step(settled.slot, refused=settled.refused, claimed=following, stale=True)
                    break
        self.slot = step.slot
        return step if wanted.places else replace(step, stale=True)

    def step_many(self, done: Sequence[Done], kept: Sequence[Claimed], wanted: Wanted, size: int) -> ManyStep:
        """Finish or give back what is done, keep what is kept, and claim up to `size` that may run together.

        What the statement for many does not know, or refuses, is finished one by one. `finished` is then left empty,
        as it is after a lost answer.
        """
        hot_ones = [entry for entry in done if _on_hot_path(entry.outcome)]
        slow_ones = [entry for entry in done if not _on_hot_path(entry.outcome)]
        while slow_ones:
            entry = slow_ones.pop()
            held = [other.task for other in (*hot_ones, *slow_ones)]
            refused = self._finish_one(entry, [*held, *kept])
            if refused is Refusal.SLOT_ENDED:
                return ManyStep(self.slot, refused=refused)
        try:
            step = self._until_known(hot_ones, kept, wanted, size)
        except (StatementRefused, NotStorable) as error:
            if not hot_ones:
                events.emit("a statement was refused", error=str(error))
                self._hesitate()
                return ManyStep(self.slot, stale=True)
            return self._one_by_one(hot_ones, kept)
        self.slot = step.slot
        return step if wanted.places else replace(step, stale=True)

    def ask(self, work: Callable[[db.Connection, Slot], T]) -> T:
        """Run a statement that may be repeated until it has an answer."""
        while True:
            try:
                return work(self.connected(), self.slot)
            except StoreError as error:
                events.emit("a statement was not answered", error=str(error))
                self._hesitate()

    def connected(self) -> db.Connection:
        """The connection; a new one as often as it takes, while the database is away."""
        pause = FIRST_PAUSE
        while True:
            try:
                return self._sessions.take(self._settings, lambda: math.inf)
            except StoreError as error:
                if pause == FIRST_PAUSE:
                    events.emit("the worker waits for the database", error=str(error))
                self._pause(pause)
                pause = min(LONGEST_PAUSE, pause * 2)

    def _send(self, task: Claimed | None, outcome: Outcome | None, wanted: Wanted) -> Step:
        if task is None or outcome is None or _on_hot_path(outcome):
            return hot.finish_and_claim(self.connected(), self.slot, task, outcome, wanted)
        return effects.finish_alone(self.connected(), self.slot, task, outcome)

    def _hesitate(self) -> None:
        """Wait before the next attempt, longer each time that failures follow each other closely."""
        closely = time.monotonic() - self._failed_at < 2 * LONGEST_PAUSE
        self._hesitation = min(LONGEST_PAUSE, self._hesitation * 2) if closely else FIRST_PAUSE
        time.sleep(self._hesitation)
        self._failed_at = time.monotonic()

    def _refused(self, outcome: Outcome | None, error: StatementRefused | NotStorable) -> Outcome | None:
        """What to send after a refusal. A result that cannot be stored is the task's failure, not the database's."""
        events.emit("a statement was refused", error=str(error))
        self._hesitate()
        unstorable = isinstance(error, NotStorable) or error.sqlstate[:2] in _DATA_EXCEPTIONS
        if outcome is not None and isinstance(error, StatementRefused) and error.sqlstate == _CHECK_VIOLATION:
            return _still_open(error)
        if outcome is None or not unstorable:
            return outcome
        reason = f"result_not_storable: {executor.reason_of(error)}"
        if outcome.effect is not None and (outcome.result or outcome.effect.receipt) is not None:
            # It has happened, and its proof cannot be kept: that is no failure.
            return Outcome("unknown", reason=reason, effect=EffectEnd(False, outcome.effect.needs, "receipt_mismatch"))
        if outcome.result is not None:
            return Outcome("failed", reason=reason)
        return replace(outcome, reason=reason, delay=0.0)  # so that nothing is sent for ever

    def _until_known(self, done: Sequence[Done], kept: Sequence[Claimed], wanted: Wanted, size: int) -> ManyStep:
        """Send it until it has happened. Raises StatementRefused or NotStorable: surely not done."""
        while True:
            try:
                return batch.finish_and_claim_many(self.connected(), self.slot, done, kept, wanted, size)
            except (InDoubt, DatabaseUnavailable) as error:
                _tell_doubt(error, [entry.task for entry in done], bool(wanted.places))
                settled = self._settle([entry.task for entry in done], kept)
                if settled is not None:
                    return settled

    def _one_by_one(self, done: Sequence[Done], kept: Sequence[Claimed]) -> ManyStep:
        """After a refusal each alone, so that one result which cannot be stored fails nobody else."""
        left = list(done)
        while left:
            entry = left.pop()
            refused = self._finish_one(entry, [*(other.task for other in left), *kept])
            if refused is Refusal.SLOT_ENDED:
                return ManyStep(self.slot, refused=refused)
        return ManyStep(self.slot, stale=True)

    def _finish_one(self, entry: Done, kept: Sequence[Claimed]) -> Refusal | None:
        outcome = entry.outcome
        while True:
            try:
                if outcome is None or _on_hot_path(outcome):
                    return self._finish_one_hot(Done(entry.task, outcome), kept)
                step = effects.finish_alone(self.connected(), self.slot, entry.task, outcome, kept)
            except (StatementRefused, NotStorable) as error:
                outcome = self._refused(outcome, error)
            except (InDoubt, DatabaseUnavailable) as error:
                _tell_doubt(error, [entry.task], False)
                settled = self._settle([entry.task], kept)
                if settled is not None:
                    return settled.refused
            else:
                self.slot = step.slot
                return step.refused

    def _finish_one_hot(self, entry: Done, kept: Sequence[Claimed]) -> Refusal | None:
        step = self._until_known([entry], kept, hot.NOWHERE, 1)
        self.slot = step.slot
        return step.refused

    def _settle(self, done: Sequence[Claimed], kept: Sequence[Claimed]) -> ManyStep | None:
        """What a statement without an answer really did; None: nothing, send it again."""
        old = [self._sessions.backend]
        while True:
            connection = self.connected()
            try:
                found = hot.settle(connection, self.slot, done, kept, *old)
                break
            except StoreError as error:
                if not connection.usable:
                    old.append(connection.backend)  # what this one sent can still arrive, too
                events.emit("a lost answer is not settled yet", error=str(error))
                self._hesitate()
        if found.slot is None:
            return ManyStep(self.slot, refused=Refusal.SLOT_ENDED)
        self.slot = found.slot
        if not found.happened:
            events.emit("a lost statement was not carried out", task=_ids(done))
            return None
        events.emit("a lost answer was settled by reading", task=_ids(done))
        return ManyStep(found.slot, claimed=found.claimed, stale=True)


def _tell_doubt(error: StoreError, finishing: Sequence[Claimed], claims: bool) -> None:
    """Tell that a statement which finished these tasks, or claimed, lost its answer."""
    if isinstance(error, InDoubt):
        events.emit("a step is in doubt", task=_ids(finishing), claims=claims, error=str(error))
        events.note(StepLost(claims))


def _ids(tasks: Sequence[Claimed]) -> str | None:
    return " ".join(str(task.id) for task in tasks) or None


def _still_open(error: StatementRefused) -> Outcome:
    """The schema refuses this end. Of what a worker sends that is one: an earlier attempt's call has no answer yet, and
    its kind, which had an effect then, has been deployed as a plain one since.
    """
    end = EffectEnd(False, "decision", "unsettled_attempt")
    return Outcome("unknown", reason=executor.reason_of(error), effect=end)


def _on_hot_path(outcome: Outcome | None) -> bool:
    """Whether one statement finishes and claims; every other outcome is finished alone."""
    return outcome is None or (outcome.effect is None and outcome.state not in ("retry", "unknown"))
