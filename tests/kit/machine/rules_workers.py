"""Rules: what workers do, also those that are late, foreign, or have lost an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from deadsure.runtime.model import Claimed, EffectEnd, Outcome, Place, Wanted
from deadsure.runtime.store.batch import Done
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from .attempts import FinishAlone
from .kinds import is_effect
from .sessions import Verb
from .stage import FATES, MANNERS, NUMBERS, Manner, Stage, Worker, choose
from .steps import HotStep, ManySteps, Settle

NOWHERE = Wanted((), ())
OUTCOMES = {
    "succeeded": Outcome("succeeded", result='{"n": 1}'),
    "failed": Outcome("failed", reason="ValueError: no"),
    "canceled": Outcome("canceled", reason="canceled"),
}
RETRY = Outcome("retry", reason="ValueError: not now", delay=3600.0)
STILL_OPEN = Outcome("unknown", reason="refused", effect=EffectEnd(False, "decision", "unsettled_attempt"))
ENDINGS = st.sampled_from(sorted(OUTCOMES))
QUEUES = ("default", "other")


class WorkerRules(Stage):
    """Claim, finish, give back, settle."""

    @precondition(lambda self: self.steppers())
    @rule(number=NUMBERS, ending=ENDINGS, place=NUMBERS, how=MANNERS, fate=FATES)
    def step(self, number: int, ending: str, place: int, how: Manner, fate: str) -> None:
        worker = choose(self.steppers(), number)
        task = worker.holding[0] if worker.holding else None
        wanted = NOWHERE if task is not None and place == 0 else self.wanted(worker, place)
        self.say(worker, HotStep(worker.slot, task, OUTCOMES[ending] if task else None, wanted), how, fate)

    @precondition(lambda self: any(not worker.holding for worker in self.free_workers()))
    @rule(number=NUMBERS, place=NUMBERS, how=MANNERS, fate=FATES)
    def claim(self, number: int, place: int, how: Manner, fate: str) -> None:
        worker = choose([worker for worker in self.free_workers() if not worker.holding], number)
        self.say(worker, HotStep(worker.slot, None, None, self.wanted(worker, place)), how, fate)

    @precondition(lambda self: self.batchers())
    @rule(number=NUMBERS, ends=st.lists(st.sampled_from(["keep", "release", *OUTCOMES]), min_size=4, max_size=4),
          place=NUMBERS, size=st.integers(1, 4), how=MANNERS, fate=FATES)  # fmt: skip
    def many(self, number: int, ends: list[str], place: int, size: int, how: Manner, fate: str) -> None:
        worker = choose(self.batchers(), number)
        done, kept = [], []
        for task, end in zip(worker.holding, ends, strict=False):
            if end == "keep":
                kept.append(task)
            else:
                done.append(Done(task, OUTCOMES.get(end)))
        kept += worker.holding[len(ends) :]
        wanted = NOWHERE if kept or place == 0 else self.wanted(worker, place)
        self.say(worker, ManySteps(worker.slot, done, kept, wanted, size), how, fate)

    @precondition(lambda self: any(worker.holding for worker in self.batchers()))
    @rule(number=NUMBERS, how=MANNERS, fate=FATES)
    def finish_alone(self, number: int, how: Manner, fate: str) -> None:
        worker = choose([worker for worker in self.batchers() if worker.holding], number)
        task, *kept = worker.holding
        outcome = STILL_OPEN if is_effect(task.kind) and self.unsettled(task) else RETRY
        self.say(worker, FinishAlone(worker.slot, task, outcome, kept), how, fate)

    @precondition(lambda self: self.free_workers() and any(worker.holding for worker in self.workers))
    @rule(mine=NUMBERS, theirs=NUMBERS, shift=st.integers(-1, 1), ending=ENDINGS, form=st.integers(0, 2), how=MANNERS)
    def a_finish_of_what_is_not_its_own(
        self, mine: int, theirs: int, shift: int, ending: str, form: int, how: Manner
    ) -> None:
        worker = choose(self.free_workers(), mine)
        other = choose([worker for worker in self.workers if worker.holding], theirs)
        if worker is other and shift == 0:
            return
        task = msgspec.structs.replace(other.holding[0], fence=other.holding[0].fence + shift)
        verb: Verb = HotStep(worker.slot, task, OUTCOMES[ending], self.wanted(worker, 1))
        if form == 1:
            verb = FinishAlone(worker.slot, task, RETRY, worker.holding)
        elif form == 2:
            verb = ManySteps(worker.slot, [Done(task, OUTCOMES[ending])], worker.holding, self.wanted(worker, 1), 2)
        self.do(verb, how)

    @precondition(lambda self: self.sent)
    @rule(number=NUMBERS, how=MANNERS)
    def a_copy_arrives_late(self, number: int, how: Manner) -> None:
        self.do(self.sent[-1 - number % len(self.sent)], how)

    @precondition(lambda self: self.doubters())
    @rule(number=NUMBERS, end_it=st.booleans(), how=MANNERS)
    def a_lost_answer_is_settled(self, number: int, end_it: bool, how: Manner) -> None:
        worker = choose(self.doubters(), number)
        transaction, old = self.busy(worker), None
        if transaction is not None:
            worker.doubt, transaction.worker, transaction.then = transaction.verb, None, lambda answer: None
            self.sent.append(transaction.verb)
        if transaction is not None and end_it:
            self.forget(transaction)
            self.aside = transaction.session
            old = self.aside.connection.backend
        done, kept = named_by(worker.doubt)
        verb = Settle(worker.slot, done, kept, old)
        self.do(verb, replace(how, hold=False), lambda found: self._settled(worker, found))
        if self.aside is not None:
            assert self.aside.is_gone(), "the session that was given up lives on"
            self.aside = None

    def batchers(self) -> list[Worker]:
        """Free workers with no effect in hand."""
        return [w for w in self.free_workers() if not any(self.runs_effect(w, task) for task in w.holding)]

    def steppers(self) -> list[Worker]:
        """Those of them with one task in hand, or none."""
        return [worker for worker in self.batchers() if len(worker.holding) < 2]

    def doubters(self) -> list[Worker]:
        """Workers that wait for an answer, or have lost it."""
        return [worker for worker in self.workers if not worker.gone and (worker.doubt or self.busy(worker))]

    def say(self, worker: Worker, verb: Verb, how: Manner, fate: str) -> None:
        """A worker's statement. Lost: it does not learn the answer; late: nothing of it has arrived yet."""
        if fate == "answered":
            self.do(verb, how, self._answered(worker, verb), worker)
            return
        worker.doubt = verb
        self.sent.append(verb)
        if fate == "lost":
            self.do(verb, how)

    def _answered(self, worker: Worker, verb: Verb) -> Callable[[Any], None]:
        def told(step: Any) -> None:
            self.sent.append(verb)
            worker.slot = step.slot
            if step.refused is not None and step.refused.name == "SLOT_ENDED":
                worker.gone = True
            elif isinstance(verb, ManySteps):
                worker.holding = [*verb.kept, *step.claimed]
            elif isinstance(verb, FinishAlone):
                worker.holding = list(verb.kept)
            else:
                worker.holding = [step.claimed] if step.claimed else []

        return told

    def _settled(self, worker: Worker, found: Any) -> None:
        kept = named_by(worker.doubt)[1]
        worker.doubt = None
        if found.slot is None:
            worker.gone = True
            return
        worker.slot = found.slot
        if found.happened:
            worker.holding = [*kept, *found.claimed]

    def wanted(self, worker: Worker, place: int) -> Wanted:
        """Where it looks: its queues from their start or, as with a low-water hint, from some row of ready."""
        queues = QUEUES if place % 2 else QUEUES[::-1]
        places = [Place(queue) for queue in queues]
        rows = self.model.all("ready")
        if rows and place % 5 == 0:
            row = choose(rows, place)
            places.insert(0, Place(row.queue, row.priority, row.run_at.isoformat(), row.id))
        return Wanted(tuple(places), worker.kinds)

    def runs_effect(self, worker: Worker, task: Claimed) -> bool:
        """Whether this worker's version of the application performs an effect for it."""
        return any(kind.name == task.kind and kind.provider is not None for kind in worker.kinds)

    def unsettled(self, task: Claimed) -> bool:
        row = self.model.rows.get(("task", task.id))
        return row is not None and row.unsettled


def named_by(verb: Any) -> tuple[list[Claimed], list[Claimed]]:
    """What a statement was to finish, and what it holds on to."""
    if isinstance(verb, ManySteps):
        return [entry.task for entry in verb.done], list(verb.kept)
    done = [] if verb.task is None else [verb.task]
    return done, list(verb.kept) if isinstance(verb, FinishAlone) else []
