"""Rules: what settles `unknown`: a provider's answer, a person, and time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from deadsure.runtime.effects import Receipt
from deadsure.runtime.store.reconcile import Decision, Doubt
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from . import kinds, provider
from .doors import AskNow, Resolve
from .lookups import Absent, ClaimLookup, Found, Mismatch, Unavailable
from .rules_effects import EffectRules
from .stage import MANNERS, NOW, NUMBERS, SELDOM, Manner, Worker, choose

_TWO_HOURS = timedelta(hours=2)
_LOOKED_UP = tuple(name for name in kinds.CONTRACTS if kinds.can_settle(name))


@dataclass
class Answer:
    """A provider's answer to a lookup, which may be written down late, or twice."""

    doubt: Doubt
    receipt: Receipt | None
    settled_before: bool


class UnknownRules(EffectRules):
    """Look up, answer, decide, wait."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Answer] = []
        self.decisions: list[Decision] = []

    @precondition(lambda self: self.free_workers() and self.model.all("unknown"))
    @rule(number=NUMBERS, what=st.sampled_from(["due", "settled"]), how=MANNERS)
    def an_unknown_task_is_looked_up(self, number: int, what: str, how: Manner) -> None:
        """Time passes, a worker looks it up, and writes down the answer at once."""
        unknown = self.model.all("unknown")
        self._time_passes(choose([row for row in unknown if row.needs == "lookup"] or unknown, number).id, what)
        self.the_database_is_as_predicted()
        self._look_up(choose(self.free_workers(), number), NOW)
        self.the_database_is_as_predicted()
        if self.answers:
            self._write(self.answers[-1], "truth", how)

    another_one_is_looked_up = an_unknown_task_is_looked_up

    @precondition(lambda self: self.free_workers() and any(row.due for row in self.model.all("unknown")))
    @rule(number=NUMBERS, how=MANNERS)
    def a_lookup(self, number: int, how: Manner) -> None:
        self._look_up(choose(self.free_workers(), number), how)

    def _look_up(self, worker: Worker, how: Manner) -> None:
        settled = {row.id for row in self.model.all("task") if row.sender == "settled"}

        def told(doubt: Doubt | None) -> None:
            if doubt is None:
                return
            found = kinds.contract_of(doubt.kind).lookup and doubt.id in self.provider.remembered
            shown = provider.receipt(doubt.id) if found else None
            self.answers.append(Answer(doubt, shown, doubt.id in settled))

        self.do(ClaimLookup(worker.slot.id, _LOOKED_UP), how, told)

    @precondition(lambda self: self.answers)
    @rule(number=NUMBERS, said=st.sampled_from(["truth", "truth", "truth", "unavailable", "mismatch"]), how=MANNERS)
    def an_answer_is_written(self, number: int, said: str, how: Manner) -> None:
        self._write(self.answers[-1 - number % len(self.answers)], said, how)

    def _write(self, answer: Answer, said: str, how: Manner) -> None:
        if said == "unavailable":
            self.do(Unavailable(answer.doubt), how)
        elif said == "mismatch":
            self.do(Mismatch(answer.doubt, provider.receipt(self.new_id())), how)
        elif answer.receipt is not None:
            self.do(Found(answer.doubt, answer.receipt), how)
        else:
            self.do(Absent(answer.doubt, answer.settled_before), how)

    @precondition(lambda self: self.model.all("unknown"))
    @rule(number=NUMBERS, how=MANNERS)
    def somebody_wants_it_looked_up_now(self, number: int, how: Manner) -> None:
        self.do(AskNow(choose(self.model.all("unknown"), number).id), how)

    @precondition(lambda self: self.model.all("unknown"))
    @rule(number=NUMBERS, state=st.sampled_from(["succeeded", "failed", "canceled"]), old=SELDOM, how=MANNERS)
    def a_person_decides(self, number: int, state: Any, old: bool, how: Manner) -> None:
        task = choose(self.model.all("unknown"), number).id
        version = self.model.rows[("task", task)].version - (1 if old else 0)
        result = "7" if state == "succeeded" else None
        decision = Decision(self.new_id(), task, version, state, "the bank said so", "eve", result)
        self.decisions.append(decision)
        self.do(Resolve(decision), how)

    @precondition(lambda self: self.decisions)
    @rule(number=NUMBERS, other=SELDOM, how=MANNERS)
    def a_decision_is_repeated(self, number: int, other: bool, how: Manner) -> None:
        decision = self.decisions[-1 - number % len(self.decisions)]
        self.do(Resolve(replace(decision, actor="mallory") if other else decision), how)

    @precondition(lambda self: self.model.all("unknown"))
    @rule(number=NUMBERS, what=st.sampled_from(["due", "due", "settled", "settled", "settled", "forgotten"]))
    def time_passes_for_an_unknown_task(self, number: int, what: str) -> None:
        self._time_passes(choose(self.model.all("unknown"), number).id, what)

    def _time_passes(self, task: UUID, what: str) -> None:
        if self.can_pass(("unknown", task), ("task", task)):
            if what == "settled":
                self._settled_now(task)
            elif what == "forgotten":
                self._forgotten(task)
            self._due(task)

    def _due(self, id: UUID) -> None:
        with self.time_passes(("unknown", id)):
            self.sql("update deadsure.unknowns set lookup_at = clock_timestamp() where id = cast(:id as uuid)", id=id)
        self.model.rows[("unknown", id)] = replace(self.model.rows[("unknown", id)], due=True)

    def _settled_now(self, id: UUID) -> None:
        """So much time passes that nothing which was sent can arrive any more, where whoever sent it is gone."""
        task = self.model.rows[("task", id)]
        if task.sender != "gone":
            return
        with self.time_passes(("task", id)):
            self._earlier("sender_gone_at", id)
        self.model.rows[("task", id)] = replace(task, sender="settled")
        self.provider.nothing_more_arrives(id)

    def _forgotten(self, id: UUID) -> None:
        """So much time passes that the provider has forgotten the key."""
        task = self.model.rows[("task", id)]
        if task.performed != "remembered":
            return
        with self.time_passes(("task", id)):
            self._earlier("first_perform_at", id)
            if task.sender == "gone":
                self._earlier("sender_gone_at", id)
        sender = "settled" if task.sender == "gone" else task.sender
        self.model.rows[("task", id)] = replace(task, performed="forgotten", sender=sender)
        self.provider.forget(id)

    def _earlier(self, column: str, id: UUID) -> None:
        """What happened to the task happened two hours earlier, and so did the lookups whose answers are on the way."""
        self.sql(
            f"update deadsure.tasks set {column} = {column} - interval '2 hours' where id = cast(:id as uuid)", id=id
        )
        for answer in self.answers:
            if answer.doubt.id == id:
                answer.doubt = replace(answer.doubt, started=answer.doubt.started - _TWO_HOURS)
