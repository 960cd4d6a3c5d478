"""One effect kind on one provider in memory, and the means to run its attempts by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from deadsure import App, Contract, Intent
from deadsure.runtime import reconciling
from deadsure.runtime.model import Claimed, ExitProof, Outcome, Wanted
from deadsure.runtime.performing import Attempt
from deadsure.runtime.store import effects, pool, reconcile, recover
from deadsure.runtime.store.effects import Permission, Prepared
from deadsure.testing import Ledger

from .store import Store, WorkerRow

FULL = Contract(lookup=True, dedups_by_key=True, key_retention=3600, settle_after=0)
LOOKUP_ONLY = replace(FULL, dedups_by_key=False)
DEDUP_ONLY = replace(FULL, lookup=False)
PAYLOAD = '{"account": "a", "amount": 5}'
KILLED = ExitProof("SIGKILL", evidence={"senders_gone": True})


@dataclass
class Bank:
    """One effect kind on one provider, and the means to run its attempts by hand."""

    store: Store
    ledger: Ledger
    app: App

    def submit(self) -> UUID:
        return self.store.submit("transfer", PAYLOAD)

    def claim(self) -> tuple[WorkerRow, Claimed]:
        worker = self.store.worker()
        claimed = worker.claim(Wanted.from_queues(("default",), self.app.kinds))
        assert claimed is not None
        return worker, claimed

    def attempt(self, worker: WorkerRow, task: Claimed, *, trusted: bool = True) -> Outcome:
        """Carry it out. `trusted` is what the worker's own clock says of the lease."""
        registered = self.app.handler("transfer")
        assert registered.provider is not None
        return Attempt(registered, registered.provider, task, Gate(worker), lambda: trusted).run()

    def finish(self, worker: WorkerRow, task: Claimed, outcome: Outcome) -> Any:
        step = effects.finish_alone(worker.connection, worker.slot, task, outcome)
        worker.slot = step.slot
        return step

    def run(self) -> str:
        """Claim the task, carry out the attempt, finish it. Returns the state afterwards."""
        worker, task = self.claim()
        step = self.finish(worker, task, self.attempt(worker, task))
        assert step.refused is None, step
        return str(step.finished)

    def die(self, *, performed: bool, proof: ExitProof = KILLED) -> None:
        """Claim the task and die, before the call or after it."""
        worker, task = self.claim()
        if performed:
            self.attempt(worker, task)
        recover.recover_worker(self.store.connection, worker.slot.id, proof)

    def reconcile(self) -> str:
        """One lookup that is due, and what became of it."""
        worker = self.store.worker()
        doubt = reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 30)
        if doubt is None:
            return "nothing due"
        return reconciling.settle(worker.connection, self.app, doubt, reconciling.ask(self.app, doubt))

    def row(self, id: UUID) -> dict[str, Any]:
        return self.store.row(id)

    @property
    def done(self) -> int:
        return self.ledger.effects.total()


@dataclass
class Gate:
    """The worker's own session, asked directly."""

    worker: WorkerRow

    def stored_effect(self, task: Claimed) -> tuple[str, bytes] | None:
        return effects.stored(self.worker.connection, self.worker.slot.id, task)

    def before_call(self, task: Claimed, what: Prepared, timeout: float, retention: float | None) -> Permission:
        return effects.before_call(self.worker.connection, self.worker.slot, task, what, timeout, retention)


def new_bank(
    store: Store, contract: Contract | None = FULL, *, max_attempts: int = 3, ledger: Ledger | None = None
) -> Bank:
    """A bank whose provider is `ledger`, or one with this contract. Its kind is registered."""
    app = App()
    provider = ledger or Ledger(contract=contract)

    @app.effect("transfer", provider=provider, max_attempts=max_attempts)
    def transfer(payload: dict[str, Any]) -> Intent:
        return Intent(account=payload["account"], amount=payload["amount"])

    pool.register_kinds(store.connection, app.kinds)
    return Bank(store, provider, app)
