"""The application that a drill's pool runs: a transfer through the ledger in the planned mode, and a canary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..runtime import points
from ..runtime.effects import Call, Intent, NotSent, Receipt
from ..runtime.handlers import App, Backoff
from ..runtime.http_provider import HttpProvider
from .modes import contract_of
from .plan import AFTER_SENDING, MAX_ATTEMPTS, orders

_ORDERS = orders()
_PLAN = _ORDERS.plan


class Reluctant(HttpProvider):
    """The ledger, to which nothing is sent before the attempt that is to be killed.

    That attempt is armed here, in the last call that comes before its window and after no other attempt's: so in the
    attempt before it for the windows before the call, and then there must be one worker only.
    """

    def perform(self, call: Call) -> Receipt:
        armed_at = _PLAN.attempt if _PLAN.window in AFTER_SENDING else _PLAN.attempt - 1
        if _PLAN.attempt > 1 and call.attempt == armed_at:
            points.arm(_PLAN.window, Path(_ORDERS.report))
        if call.attempt < _PLAN.attempt:
            raise NotSent("the drill lets this attempt fail before it sends anything")
        return super().perform(call)


app = App()
_LEDGER = Reluctant(_ORDERS.ledger, name="ledger", contract=contract_of(_PLAN.provider), timeout=5.0)
_AT_ONCE = Backoff(first=0.05, factor=1.0, longest=0.05)


@app.effect(_PLAN.transfer, provider=_LEDGER, max_attempts=MAX_ATTEMPTS, queue=_PLAN.name, backoff=_AT_ONCE)
def transfer(payload: dict[str, Any]) -> Intent:
    """What the drill is about."""
    return Intent(account=payload["account"], amount=payload["amount"])


@app.task(_PLAN.canary, on_death="fail", queue=_PLAN.name, priority=1)
def canary(payload: dict[str, Any]) -> None:
    """It runs only when a worker looked for work and found nothing more urgent."""
