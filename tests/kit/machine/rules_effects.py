"""Rules: effects, their requests and what becomes of them."""

from __future__ import annotations

from typing import Any

from deadsure.runtime.model import Claimed, EffectEnd, ExitProof, Outcome
from deadsure.runtime.receipts import result_of, text_of
from deadsure.runtime.store.effects import Permission, Prepared
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from . import kinds, provider
from .attempts import BeforeCall, FinishAlone
from .kinds import INTENT
from .recoveries import RecoverWorker
from .rules_workers import ENDINGS, OUTCOMES, WorkerRules
from .stage import FATES, MANNERS, NOW, NUMBERS, SELDOM, Manner, Worker, choose
from .steps import HotStep

_SAID = st.sampled_from(["receipt", "receipt", "ambiguous", "rejected", "not sent", "mismatch", "canceled"])


class EffectRules(WorkerRules):
    """Ask, call, arrive, finish."""

    @precondition(lambda self: self.free_workers())
    @rule(number=NUMBERS, arrives=st.booleans(), said=_SAID, ending=ENDINGS, how=MANNERS, fate=FATES)
    def a_worker_goes_on(self, number: int, arrives: bool, said: str, ending: str, how: Manner, fate: str) -> None:
        """Several steps of an undisturbed attempt, so that what comes late in a task's life is reached often."""
        worker = choose(self.free_workers(), number)
        if not worker.holding:
            self.say(worker, HotStep(worker.slot, None, None, self.wanted(worker, number)), NOW, "answered")
            self.the_database_is_as_predicted()
        if len(worker.holding) != 1:
            return
        (task,) = worker.holding
        if not self.runs_effect(worker, task):
            self.say(worker, HotStep(worker.slot, task, OUTCOMES[ending], self.wanted(worker, 1)), how, fate)
            return
        self._call(worker, task, "bank", NOW)
        self.the_database_is_as_predicted()
        if arrives and (task.id, task.fence) in self.provider.flying:
            self.provider.arrive((task.id, task.fence), task.kind)
        if fate == "late":
            worker.gone = True
            self.do(
                RecoverWorker(worker.slot.id, ExitProof("SIGKILL", evidence={"senders_gone": number % 3 != 0})), how
            )
        else:
            self.say(worker, FinishAlone(worker.slot, task, self._outcome(task, said)), how, fate)

    another_worker_goes_on = a_worker_goes_on

    def performing(self) -> list[tuple[Worker, Claimed]]:
        """Free workers with an effect in hand."""
        return [(w, t) for w in self.free_workers() if len(w.holding) == 1 for t in w.holding if self.runs_effect(w, t)]

    @precondition(lambda self: self.performing())
    @rule(number=NUMBERS, moved=SELDOM, lost=SELDOM, how=MANNERS)
    def a_call_is_permitted(self, number: int, moved: bool, lost: bool, how: Manner) -> None:
        worker, task = choose(self.performing(), number)
        self._call(worker, task, "elsewhere" if moved else "bank", how, lost)

    def _call(self, worker: Worker, task: Claimed, identity: str, how: Manner, lost: bool = False) -> None:
        contract = kinds.contract_of(task.kind)
        what = Prepared("bank", identity, f"deadsure-{task.id}", INTENT.canonical.decode(),
                        INTENT.fingerprint, b"bytes of attempt %d" % task.attempt)  # fmt: skip
        verb = BeforeCall(worker.slot, task, what, 10.0, contract.key_retention if contract.dedups_by_key else None)

        def told(permission: Permission) -> None:
            self.sent.append(verb)
            if permission.verdict == "go" and not worker.gone:
                first = self.facts.tables["task"].get(task.id, {}).get("request")
                assert first in (None, f"\\x{permission.request.hex()}"), "another request under the same key"
                self.provider.send((task.id, task.fence))

        self.do(verb, how, None if lost else told, worker)

    @precondition(lambda self: self.provider.flying)
    @rule(number=NUMBERS)
    def a_request_arrives(self, number: int) -> None:
        request = sorted(self.provider.flying)[number % len(self.provider.flying)]
        row = self.model.rows.get(("task", request[0]))
        if row is not None:
            self.provider.arrive(request, row.kind)

    @precondition(lambda self: self.performing())
    @rule(number=NUMBERS, said=_SAID, how=MANNERS, fate=FATES)
    def an_effect_ends(self, number: int, said: str, how: Manner, fate: str) -> None:
        worker, task = choose(self.performing(), number)
        outcome = self._outcome(task, said)
        self.say(worker, FinishAlone(worker.slot, task, outcome), how, fate)

    def _outcome(self, task: Claimed, said: str) -> Outcome:
        """What the attempt comes to: only what is true of the world, and only what performing.py makes of it."""
        request: Any = (task.id, task.fence)
        needs: Any = kinds.needs(task.kind)
        called = request in self.provider.sent
        if not called and said not in ("rejected", "canceled"):
            said = "not sent"
        if said == "receipt" and task.id not in self.provider.remembered:
            said = "ambiguous"
        if said in ("rejected", "not sent", "canceled") and self.provider.done[task.id] and called:
            said = "ambiguous"
        if said == "canceled" and called:
            said = "not sent"
        match said:
            case "receipt":
                shown = provider.receipt(task.id)
                return Outcome("succeeded", result_of(shown), effect=EffectEnd(True, needs, receipt=text_of(shown)))
            case "ambiguous":
                return Outcome("unknown", reason="no answer", effect=EffectEnd(False, needs))
            case "mismatch":
                return Outcome("unknown", reason="another", effect=EffectEnd(False, needs, "receipt_mismatch", "{}"))
        self.provider.give_up(request)
        state: Any = {"rejected": "failed", "not sent": "retry", "canceled": "canceled"}[said]
        return Outcome(state, reason=said, effect=EffectEnd(True, needs), delay=3600.0 if state == "retry" else 0.0)
