"""The application that a soak's pools run: plain kinds of every `on_death`, and an effect for every contract.

What a handler is to do stands in its payload: `seconds` it takes, whether it `heeds` a cancel request, `raises`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ...runtime.effects import Call, Intent, Receipt
from ...runtime.handlers import App, Backoff, Context
from ...runtime.http_provider import HttpProvider
from .plan import CALL_TIMEOUT, SoakKind, orders
from .runs import RunLog

_ORDERS = orders()
_RUNS = RunLog(Path(_ORDERS.runs))
_AT_ONCE = Backoff(first=0.05, factor=2.0, longest=0.5)
_LOOK_EVERY = 0.02

app = App()


class Meant(Exception):
    """The payload asked for it."""


class Witnessed(HttpProvider):
    """A ledger, every call of which is noted."""

    def perform(self, call: Call) -> Receipt:
        with _RUNS.run("perform", call.task_id, call.kind, call.fence, call.attempt):
            return super().perform(call)

    def lookup(self, call: Call) -> Receipt | None:
        with _RUNS.run("lookup", call.task_id, call.kind, call.fence, call.attempt):
            return super().lookup(call)


def _handle(kind: str, payload: Any, ctx: Context) -> dict[str, int]:
    """Its result names the fence under which it was made."""
    with _RUNS.run("handler", ctx.task_id, kind, ctx.fence, ctx.attempt):
        until = time.monotonic() + payload["seconds"]
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_EVERY))
            if payload["heeds"]:
                ctx.raise_if_canceled()
        if payload["raises"]:
            raise Meant("as it was asked for")
        return {"fence": ctx.fence, "attempt": ctx.attempt}


def _plain(name: str) -> Any:
    def handler(payload: Any, ctx: Context) -> dict[str, int]:
        return _handle(name, payload, ctx)

    return handler


def _transfer(payload: Any) -> Intent:
    return Intent(account=payload["account"], amount=payload["amount"])


def _register(name: str, kind: SoakKind) -> None:
    queue = _ORDERS.plan.name
    if kind.mode is None:
        declared = app.task(name, on_death=kind.on_death, max_attempts=kind.max_attempts, queue=queue, backoff=_AT_ONCE)
        declared(_plain(name))
        return
    url = _ORDERS.ledgers[kind.mode]
    provider = Witnessed(url, name=f"ledger-{kind.mode}", contract=kind.contract, timeout=CALL_TIMEOUT)
    app.effect(name, provider=provider, max_attempts=kind.max_attempts, queue=queue, backoff=_AT_ONCE)(_transfer)


for _name, _kind in _ORDERS.plan.kinds.items():
    _register(_name, _kind)
