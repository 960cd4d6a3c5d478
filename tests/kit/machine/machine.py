"""The state machine: all rules, and what must hold at the end of each example."""

from __future__ import annotations

from deadsure.runtime.model import EffectEnd, Outcome

from . import kinds
from .attempts import FinishAlone
from .pools import Promote
from .recoveries import Sweep
from .rules_doors import DoorRules
from .rules_pools import PoolRules
from .rules_unknown import UnknownRules
from .rules_workers import OUTCOMES
from .stage import Worker
from .steps import HotStep

_NEVER_CALLED = Outcome("failed", reason="never called", effect=EffectEnd(True, "decision"))


class StoreMachine(PoolRules, DoorRules, UnknownRules):
    """Every verb of the store, in any order."""

    def teardown(self) -> None:
        """Whatever has happened, one new pool finds all that is left: nothing is stuck."""
        try:
            if self.sound:
                self._one_new_pool_does_the_rest()
        finally:
            super().teardown()

    def _one_new_pool_does_the_rest(self) -> None:
        for transaction in list(self.open):
            self.end(transaction, "commit")
        for supervisor in self.supervisors:
            self.a_lease_is_over(supervisor)
        self.new_supervisor(number=0)
        self.new_worker(number=-1, otherwise=False)
        self.do(Sweep(self.supervisors[-1].id))
        self.the_database_is_as_predicted()
        assert not [row for row in self.model.all("task") if row.state == "running"], "a task runs under no live pool"
        for row in self.model.all("scheduled"):
            self.comes_due(row.id)
        self.do(Promote())
        self.the_database_is_as_predicted()
        self._work(self.workers[-1])
        left = [row for row in self.model.all("task") if row.state in ("queued", "running")]
        assert not left, f"left behind: {left}"

    def _work(self, worker: Worker) -> None:
        """Claim and finish until nothing is found and no left-over row was dropped."""
        for _ in range(len(self.model.all("ready")) + 1):
            task = worker.holding[0] if worker.holding else None
            if task is not None and kinds.is_effect(task.kind):
                verb: FinishAlone | HotStep = FinishAlone(worker.slot, task, _NEVER_CALLED)
                self.do(verb, then=self._answered(worker, verb))
                task = None
            verb = HotStep(worker.slot, task, OUTCOMES["succeeded"] if task else None, self.wanted(worker, 1))
            self.do(verb, then=self._answered(worker, verb))
            self.the_database_is_as_predicted()
