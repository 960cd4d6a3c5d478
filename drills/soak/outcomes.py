"""What became of the interrupted tasks: wrong verdicts, doubts that could have been settled, and what needed a person.

A task was interrupted when a death or an answer that says nothing came between its claim and its finish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ...runtime.effects import Contract, key_for
from .facts import Facts, Task
from .violations import Violation


@dataclass(frozen=True, slots=True)
class Outcomes:
    """`interrupted` by the state in which they are. `person`: by kind, those that no contract could have settled."""

    interrupted: Counter[str]
    wrong: tuple[Violation, ...]
    needless: tuple[Violation, ...]
    person: Counter[str]


@dataclass(frozen=True, slots=True)
class Doubt:
    """An unknown task as it stood: in the end, or before a person decided."""

    task: Task
    cancel_requested: bool
    attempts: int
    cause: str
    sender_gone: bool


def of(facts: Facts) -> Outcomes:
    """Judge them all."""
    person: Counter[str] = Counter()
    needless: list[Violation] = []
    for doubt in _doubts(facts):
        kind = facts.kinds[doubt.task.kind]
        why = _could_be_settled(facts, doubt, kind.contract)
        if why is None:
            person[kind.what] += 1
        else:
            needless.append(Violation(0, f"is unknown, and {why}", doubt.task.id, "needless unknown"))
    met = [row for row in facts.tasks.values() if _interrupted(facts, row)]
    wrong = [found for row in facts.tasks.values() for found in _wrong(facts, row)]
    return Outcomes(Counter(row.state for row in met), tuple(wrong), tuple(needless), person)


def _interrupted(facts: Facts, row: Task) -> bool:
    return any(event.event in ("recovered", "unknown") for event in facts.events_of.get(row.id, []))


def _doubts(facts: Facts) -> Iterator[Doubt]:
    for row in facts.tasks.values():
        if row.state == "unknown":
            yield Doubt(row, row.cancel_requested, row.attempts, row.cause or "", row.sender_gone)
    for decision in facts.decisions:
        row, was = facts.tasks[decision.task], decision.before
        yield Doubt(row, was["cancel_requested"], was["attempts"], was["cause"] or "", row.sender_gone)


def _could_be_settled(facts: Facts, doubt: Doubt, contract: Contract | None) -> str | None:
    """How its contract could have settled it; None: only a person can."""
    if contract is None:
        return None
    if contract.lookup and _shown_by_a_lookup(facts, doubt.task.id):
        return "its lookup shows that it was done"
    spent = doubt.attempts >= doubt.task.max_attempts
    if doubt.cancel_requested or spent or doubt.cause in ("retention_passed", "provider_changed"):
        return None
    if contract.dedups_by_key:
        return "it may be asked for again under the same key"
    if contract.lookup and doubt.sender_gone:
        return "a lookup shows that it was not done, and who sent it is gone"
    return None


def _shown_by_a_lookup(facts: Facts, task: str) -> bool:
    """It was done before it was last looked up: what is done later, by a sender that woke up, no lookup could show."""
    lines = facts.book_of.get(key_for(task), [])
    done = next((place for place, line in enumerate(lines) if line["event"] == "effect"), None)
    asked = [place for place, line in enumerate(lines) if line["event"] == "lookup"]
    return done is not None and (not asked or done < asked[-1])


def _wrong(facts: Facts, row: Task) -> Iterator[Violation]:
    """What its state says is not what happened."""
    by = "a person decided so" if row.id in facts.decision_about else "nobody decided that"
    if facts.kinds[row.kind].mode is not None:
        effects = facts.effects(key_for(row.id))
        shown = row.receipt.get("receipt_id") if isinstance(row.receipt, dict) else None
        if row.state == "succeeded" and not effects:
            yield Violation(0, f"has succeeded ({by}), and the ledger has not done it", row.id)
        elif row.state == "succeeded" and shown not in (None, *(line["receipt_id"] for line in effects)):
            yield Violation(0, f"has the receipt {shown}, which the ledger never gave", row.id)
        elif row.state == "succeeded" and shown is None and row.id not in facts.decision_about:
            yield Violation(0, "has succeeded without a receipt", row.id)
        # By itself nothing is failed or canceled that was done: that is invariant 10.
        if row.state in ("failed", "canceled") and effects and row.id in facts.decision_about:
            yield Violation(0, f"is {row.state} ({by}), and the ledger has done it", row.id)
        return
    deaths = [event for event in facts.events_of.get(row.id, []) if event.event == "recovered"]
    for event in deaths:
        if event.detail["to"] not in _after_death(facts.kinds[row.kind].on_death):
            yield Violation(0, f"its on_death is {facts.kinds[row.kind].on_death}, and a death made it "
                            f"{event.detail['to']}", row.id)  # fmt: skip


def _after_death(on_death: str) -> tuple[str, ...]:
    match on_death:
        case "fail":
            return ("failed",)
        case "requeue":
            return ("queued", "failed", "canceled")
        case _:
            return ("unknown",)
