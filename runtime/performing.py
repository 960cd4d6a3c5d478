"""One attempt at an effect, step by step: prepare, check, call, verify. The order is the whole point.

    claim         durable; the key is a function of the task's id
    before_call   one statement: may this be done, by this worker, now? From here on it may have happened
    perform       no transaction is open, no lock is held
    verify        a receipt for something else completes nothing
    finish        receipt and `succeeded` in one transaction
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from .effects import (
    Ambiguous,
    Call,
    Contract,
    Intent,
    NotSent,
    Provider,
    Receipt,
    Rejected,
    check,
    identity_of,
    key_for,
    mismatch,
    timeout_of,
)
from .errors import NotStorable
from .events import note
from .executor import call, payload_of, reason_of
from .facts import Called
from .handlers import Registered
from .model import Claimed, EffectEnd, Outcome
from .points import reach
from .receipts import plain, result_of, text_of
from .store.effects import Permission, Prepared


class Gate(Protocol):
    """The database, as one attempt needs it. Both calls return only with an answer."""

    def stored_effect(self, task: Claimed) -> tuple[str, bytes] | None: ...
    def before_call(self, task: Claimed, what: Prepared, timeout: float, retention: float | None) -> Permission: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: the task, its handler and its provider. `trusted` is the local word on the lease."""

    registered: Registered
    provider: Provider
    task: Claimed
    gate: Gate
    trusted: Callable[[], bool]

    def run(self) -> Outcome:
        """Carry it out. Never raises for what the handler or the provider does: that is the outcome."""
        try:
            what, timeout, retention = self._prepared()
        except BaseException as error:  # noqa: BLE001  whatever the handler raises is its failure
            return self._definite("failed", error)
        permission = self.gate.before_call(self.task, what, timeout, retention)
        if permission.verdict != "go":
            return self._refused(permission)
        reach("before_call")
        if not self.trusted():
            return self._definite("retry", NotSent("the lease could no longer be trusted; nothing was sent"))
        # An earlier attempt's intent and bytes win over what the code of today would make of the payload.
        stored = Intent(json.loads(permission.intent))
        outcome = self._perform(stored, self._call(stored, permission, timeout))
        note(Called(self.provider.name, _answer(outcome)))
        return outcome

    def _prepared(self) -> tuple[Prepared, float, float | None]:
        """What is to be sent, the call's timeout, the contract's retention. May raise anything: nothing was done."""
        check(self.provider)
        intent, request = self._intent()
        contract = self.provider.contract
        what = Prepared(
            self.provider.name,
            identity_of(self.provider),
            key_for(str(self.task.id)),
            intent.canonical.decode(),
            intent.fingerprint,
            request,
        )
        # A key that is not refused the second time is not remembered: no call while an earlier one is open.
        remembered = contract.key_retention if contract is not None and contract.dedups_by_key else None
        return what, timeout_of(self.provider), remembered

    def _intent(self) -> tuple[Intent, bytes]:
        stored = self.gate.stored_effect(self.task) if self.task.attempt > 1 else None
        if stored is not None:
            return Intent(json.loads(stored[0])), stored[1]
        intent = intent_of(self.registered, self.task.payload)
        return intent, intent.canonical

    def _refused(self, permission: Permission) -> Outcome:
        if permission.verdict == "provider_changed" or permission.verdict == "retention_passed":
            end = EffectEnd(False, "decision", permission.verdict)
            return Outcome("unknown", reason=permission.verdict, effect=end)
        if permission.verdict == "canceled":
            return Outcome("canceled", reason="canceled before the call", effect=self._end(True))
        # Not ours any more: the finish will be refused, and says why.
        return Outcome("retry", reason="the worker had lost the task; nothing was sent", effect=self._end(True))

    def _perform(self, intent: Intent, call: Call) -> Outcome:
        try:
            receipt = self.provider.perform(call)
        except Rejected as error:
            return self._definite("failed", error)
        except NotSent as error:
            return self._definite("retry", error)
        except BaseException as error:  # noqa: BLE001  whatever else happens, it may have been done
            shown = error.receipt if isinstance(error, Ambiguous) else None
            if shown is not None:
                return self._verified(intent, call, shown)
            return Outcome("unknown", reason=reason_of(error), effect=self._end(False))
        reach("after_tool")
        return self._verified(intent, call, receipt)

    def _verified(self, intent: Intent, call: Call, receipt: Receipt) -> Outcome:
        why, text, result = None, None, None
        try:
            shown = plain(receipt, intent, self.provider.contract)
            why = mismatch(shown, call.key, intent, self.provider.contract)
            text, result = text_of(shown), result_of(shown)
        except NotStorable as error:
            why = f"it cannot be stored ({error})"
        if why is not None:
            end = EffectEnd(False, self._needs, "receipt_mismatch", text)
            return Outcome("unknown", reason=f"the receipt does not prove the intent: {why}", effect=end)
        return Outcome("succeeded", result=result, effect=EffectEnd(True, self._needs, receipt=text))

    def _call(self, intent: Intent, permission: Permission, timeout: float) -> Call:
        assert permission.not_after is not None
        return Call(
            task_id=str(self.task.id),
            kind=self.task.kind,
            attempt=self.task.attempt,
            fence=self.task.fence,
            key=key_for(str(self.task.id)),
            intent=intent,
            fingerprint=intent.fingerprint,
            request=permission.request,
            not_after=permission.not_after,
            timeout=timeout,
        )

    def _definite(self, state: Literal["failed", "retry"], error: BaseException) -> Outcome:
        delay = self.registered.backoff.delay(self.task.attempt) if state == "retry" else 0.0
        return Outcome(state, reason=reason_of(error), effect=self._end(True), delay=delay)

    def _end(self, definite: bool) -> EffectEnd:
        return EffectEnd(definite, self._needs)

    @property
    def _needs(self) -> Literal["lookup", "decision"]:
        return needs(self.provider.contract)


def _answer(outcome: Outcome) -> Literal["receipt", "rejected", "not_sent", "ambiguous", "receipt_mismatch"]:
    """How the provider answered, by what it comes to."""
    match outcome.state:
        case "succeeded":
            return "receipt"
        case "failed":
            return "rejected"
        case "retry":
            return "not_sent"
    mismatched = outcome.effect is not None and outcome.effect.cause == "receipt_mismatch"
    return "receipt_mismatch" if mismatched else "ambiguous"


def needs(contract: Contract | None) -> Literal["lookup", "decision"]:
    """What can settle an unknown task of such a provider."""
    return "lookup" if contract is not None and (contract.lookup or contract.dedups_by_key) else "decision"


def intent_of(registered: Registered, payload: str) -> Intent:
    """What the handler makes of a payload (JSON text). Raises what the handler raises, or TypeError."""
    made = call(registered, payload_of(registered, payload))
    if not isinstance(made, Intent):
        raise TypeError(f"an effect's function must return an Intent, not {type(made).__name__}")
    return made

