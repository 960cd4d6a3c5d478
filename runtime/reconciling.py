"""Settling an unknown task by its provider's own answer."""

from __future__ import annotations

import json
import random

from . import events
from .db import Connection
from .effects import Call, Contract, Intent, Provider, Receipt, Unavailable, identity_of, key_for, mismatch, timeout_of
from .executor import reason_of
from .facts import Asking, Reconciled
from .handlers import App, Registered
from .performing import intent_of
from .receipts import plain
from .states import State
from .store import account, reconcile
from .store.reconcile import Doubt

#: Seconds between two lookups of one task: the first, and the longest they grow to.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
#: A contract that offers nothing: what is left is a person's decision.
_NOTHING = Contract(lookup=False, dedups_by_key=False, key_retention=0.0, settle_after=0.0)

Answer = Receipt | None | Unavailable


def ask(app: App, doubt: Doubt) -> Answer:
    """Ask the provider, with no transaction open: its receipt, None for an authoritative absence, or Unavailable.

    Never raises: whatever else the provider does is no answer. Another provider behind the same name is none either.
    """
    registered = app.handler(doubt.kind)
    provider = registered.provider
    try:
        if provider is None or not (provider.contract or _NOTHING).lookup:
            return None
        if doubt.identity is not None and doubt.identity != identity_of(provider):
            return Unavailable(f"the provider {provider.name!r} is another one now ({identity_of(provider)})")
        call = _call(registered, provider, doubt)
        answer = provider.lookup(call)
        # What is no receipt, or cannot be kept, is no answer.
        return None if answer is None else plain(answer, call.intent, provider.contract)
    except BaseException as error:  # noqa: BLE001  no answer, whatever it was
        return Unavailable(reason_of(error))


def settle(connection: Connection, app: App, doubt: Doubt, answer: Answer) -> str:
    """Write down what the answer settles, if the task has not moved on since it was read. Returns what became of it.

    May be repeated after a lost answer: it then finds what it has written.
    """
    provider = app.handler(doubt.kind).provider
    contract = (provider.contract if provider is not None else None) or _NOTHING
    asking = Asking(doubt.id, doubt.fence, doubt.lookups, provider.name if provider is not None else "none")
    events.note(asking)
    outcome = _write(connection, doubt, answer, contract)
    state = State.SUCCEEDED if outcome == "found" else None
    written = account.reconciled_as(connection, asking) if outcome == "moved_on" else None
    done = written or Reconciled(doubt.kind, asking.provider, outcome, state)
    events.note(done)
    return done.outcome


def _write(connection: Connection, doubt: Doubt, answer: Answer, contract: Contract) -> str:
    if isinstance(answer, Unavailable):
        reconcile.unavailable(connection, doubt, pause(doubt.lookups))
        return "unavailable"
    if answer is None:
        return reconcile.absent(connection, doubt, contract) or "moved_on"
    why = _mismatch(doubt, answer, contract)
    if why is not None:
        events.emit("a receipt does not prove its intent", **doubt.names, why=why)
        return "mismatch" if reconcile.mismatch(connection, doubt, answer, why) else "moved_on"
    return "found" if reconcile.found(connection, doubt, answer) else "moved_on"


def pause(lookups: int) -> float:
    """Seconds until the next lookup: exponentially longer, with jitter."""
    step = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(lookups - 1, 20))
    return step * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret


def hold(app: App) -> float:
    """Seconds for which a task is taken for a lookup: longer than any of the providers may take to answer."""
    providers = (app.handler(kind.name).provider for kind in app.kinds)
    return 5.0 + max((timeout_of(provider) for provider in providers if provider is not None), default=0.0)


def _mismatch(doubt: Doubt, receipt: Receipt, contract: Contract) -> str | None:
    """A receipt is held against the intent as it was stored before the call, never against what code makes today."""
    if doubt.intent is None:
        return "nothing was ever prepared for this task"
    return mismatch(receipt, doubt.key or key_for(str(doubt.id)), Intent(json.loads(doubt.intent)), contract)


def _call(registered: Registered, provider: Provider, doubt: Doubt) -> Call:
    intent = Intent(json.loads(doubt.intent)) if doubt.intent else intent_of(registered, doubt.payload)
    return Call(
        task_id=str(doubt.id),
        kind=doubt.kind,
        attempt=doubt.attempts,
        fence=doubt.fence,
        key=doubt.key or key_for(str(doubt.id)),
        intent=intent,
        fingerprint=intent.fingerprint,
        request=doubt.request or intent.canonical,
        not_after=doubt.started,
        timeout=timeout_of(provider),
    )
