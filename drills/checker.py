"""Judgement: what the contract promises for a kill, and whether the facts are that. Pure.

A verdict is true, false or unknown. What goes wrong in here is unknown, and never a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .facts import Facts
from .modes import contract_of
from .plan import AFTER_SENDING, MAX_ATTEMPTS, Plan

Value = Literal[True, False, "unknown"]


@dataclass(frozen=True, slots=True)
class Promise:
    """The fact table as it has to be."""

    state: str
    attempts: int
    effects: int
    post_calls: int
    cancel_requested: bool
    proof: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why` names each fact that is not as promised."""

    value: Value
    why: tuple[str, ...] = ()


def promise(plan: Plan) -> Promise:
    """What must come out of this kill.

    A worker that is killed after its finish has nothing in hand. Before that the task becomes unknown; then what was
    done is either shown by a lookup, or it is done again under the same key where the contract allows that and neither
    a cancel nor the budget forbids it, or it waits for a person.
    """
    if plan.window == "after_finish":
        return Promise("succeeded", plan.attempt, 1, 1, False, None)
    if _shown_by_lookup(plan):
        return Promise("succeeded", plan.attempt, 1, 1, plan.cancel, plan.confirm)
    sent = 1 if plan.window in AFTER_SENDING else 0
    again = not plan.cancel and _may_be_done_again(plan)
    killed = plan.deaths if again else 1
    last = plan.attempt + killed - 1
    if again and last < MAX_ATTEMPTS:
        return Promise("succeeded", last + 1, 1, sent * killed + 1, False, plan.confirm)
    return Promise("unknown", last, sent, sent * killed, plan.cancel, plan.confirm)


def _shown_by_lookup(plan: Plan) -> bool:
    """The request has left, and the provider still knows. A drill waits until a ledger that forgets has forgotten."""
    contract = contract_of(plan.provider)
    return plan.window in AFTER_SENDING and contract is not None and contract.lookup and plan.provider != "forgets"


def _may_be_done_again(plan: Plan) -> bool:
    match plan.provider:
        case "contract" | "dedup-only":
            return True
        case "lookup-only":
            # By a lock or a lease nobody knows whether the sender, or a process that it started, is really gone.
            return plan.confirm == "exit"
        case "forgets":
            # Only what was never performed: past its retention an absence proves nothing.
            return plan.window == "after_claim" and plan.attempt == 1
        case _:
            return False


def judge(plan: Plan, facts: Facts | None) -> Verdict:
    """Whether these are the promised facts."""
    try:
        return _judge(plan, facts)
    except Exception as error:  # noqa: BLE001  an error in here must not pass for a verdict
        return Verdict("unknown", (f"the checker itself failed: {type(error).__name__}: {error}",))


def _judge(plan: Plan, facts: Facts | None) -> Verdict:
    if facts is None:
        return Verdict("unknown", ("there are no facts",))
    wanted = promise(plan)
    names = ("state", "attempts", "effects", "post_calls", "cancel_requested", "proof")
    why = [_differs(name, getattr(facts, name), getattr(wanted, name)) for name in names]
    why += _always(plan, facts)
    found = tuple(text for text in why if text)
    return Verdict(not found, found)


def _always(plan: Plan, facts: Facts) -> list[str]:
    """What holds whatever the contract says."""
    return [
        _differs("key_preserved", facts.key_preserved, True),
        _differs("window", facts.window, plan.window),
        _differs("signal", facts.signal, "SIGKILL"),
        _differs("canary", facts.canary, "succeeded"),
        "" if facts.effects <= facts.post_calls else "there are more effects than requests",
        "" if facts.attempts <= MAX_ATTEMPTS else "the budget was overspent",
        "" if facts.state != "unknown" or facts.needs == "decision" else "it is unknown and waits for nobody",
    ]


def _differs(name: str, found: object, wanted: object) -> str:
    same = type(found) is type(wanted) and found == wanted
    return "" if same else f"{name} is {found!r} and must be {wanted!r}"
