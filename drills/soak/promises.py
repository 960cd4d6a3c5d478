"""Invariants 6, 10, 11 and 12: what clients and people were told, and whether it was kept."""

from __future__ import annotations

from collections.abc import Iterator

from ...runtime.effects import key_for
from .facts import Decision, Event, Facts, Task, grouped
from .history import Asked, Call, Shown, Verb
from .violations import Violation

#: What a call may be answered, beside 503.
_FINE: dict[Verb, tuple[int, ...]] = {
    "submit": (202,), "batch": (202,), "read": (200,), "list": (200,), "cancel": (202, 409), "resolve": (200, 409, 412),
}  # fmt: skip


def nothing_acknowledged_is_lost(facts: Facts) -> Iterator[Violation]:
    """6. Nothing acknowledged is lost: it is there, as it was asked for, and once under its key."""
    ids: dict[str, str] = {}
    for call in facts.calls:
        if call.verb not in ("submit", "batch") or call.status != 202:
            continue
        if len(call.asked) != len(call.shown):
            yield Violation(6, f"call {call.number} asked for {len(call.asked)}, and {len(call.shown)} were shown")
        for asked, shown in zip(call.asked, call.shown, strict=False):
            yield from _kept(facts, asked, shown)
            if ids.setdefault(asked.key, shown.id) != shown.id:
                yield Violation(6, f"the key {asked.key} was accepted for {ids[asked.key]} too", shown.id, "duplicate")


def _kept(facts: Facts, asked: Asked, shown: Shown) -> Iterator[Violation]:
    row = facts.tasks.get(shown.id)
    if row is None:
        yield Violation(6, "was acknowledged, and there is no such task", shown.id, "lost")
    elif (row.key, row.kind, row.payload) != (asked.key, asked.kind, asked.payload):
        yield Violation(6, "was acknowledged, and is stored as something else", shown.id, "lost")


def a_cancel_is_kept(facts: Facts) -> Iterator[Violation]:
    """10. What was canceled while queued never runs; no request is lost; nothing is queued again after it; nothing is
    canceled or failed while a request to a provider is unsettled.
    """
    for call in facts.calls:
        if call.verb == "cancel" and call.status == 202:
            for shown in call.shown:
                yield from _requested(facts, call, shown)
    for id, row in facts.tasks.items():
        asked = next((e for e in facts.events_of.get(id, []) if e.event == "cancel_requested"), None)
        if asked is not None:
            yield from _stopped(facts, row, asked)
        if row.state in ("failed", "canceled") and id not in facts.decision_about:
            yield from _nothing_open(facts, row)


def _requested(facts: Facts, call: Call, shown: Shown) -> Iterator[Violation]:
    row = facts.tasks.get(shown.id)
    if row is not None and not row.cancel_requested:
        yield Violation(10, f"call {call.number} was accepted, and its cancel request is lost", row.id, "lost")
    for run in facts.runs_of.get(shown.id, []):
        if run.fence > shown.fence:
            yield Violation(10, f"ran under fence {run.fence}; its cancel was accepted under {shown.fence}", shown.id)


def _stopped(facts: Facts, row: Task, asked: Event) -> Iterator[Violation]:
    for event in facts.events_of[row.id]:
        if event.number > asked.number and event.detail.get("to") == "queued":
            yield Violation(10, f"was queued again ({event.event}) after its cancel request", row.id)
    for run in facts.runs_of.get(row.id, []):
        if run.fence > asked.detail["fence"]:
            yield Violation(10, f"was claimed after its cancel request: it ran under fence {run.fence}", row.id)
        elif asked.detail.get("to") == "canceled" and run.start > asked.at + facts.slack:
            yield Violation(10, "was canceled while it was queued, and ran", row.id)


def _nothing_open(facts: Facts, row: Task) -> Iterator[Violation]:
    if row.unsettled:
        yield Violation(10, f"is {row.state} with a request that is unsettled", row.id)
    if facts.effects(key_for(row.id)):
        yield Violation(10, f"is {row.state}, and the ledger has done it", row.id)


def trouble_is_503(facts: Facts) -> Iterator[Violation]:
    """11. Database trouble is 503, never 404, 500 or `canceled`; and what says that nothing was done is true."""
    for call in facts.calls:
        if call.status not in (None, 503, *_FINE[call.verb]):
            said = f"call {call.number}, {call.verb}, was answered {call.status} {call.problem}"
            yield Violation(11, said, call.task)
        if call.verb == "cancel" and call.status == 409 and _state(facts, call.task) not in ("succeeded", "failed"):
            yield Violation(11, f"call {call.number} was told that it is over, and it is not", call.task)
    yield from _not_done_after_all(facts)
    for id, row in facts.tasks.items():
        if row.state == "canceled" and not row.cancel_requested:
            yield Violation(11, "is canceled, and nobody asked for that", id)


def _state(facts: Facts, task: str | None) -> str | None:
    row = facts.tasks.get(task or "")
    return None if row is None else row.state


def _not_done_after_all(facts: Facts) -> Iterator[Violation]:
    """A 503 that is not in doubt says that nothing was done. Where every such call got one, nothing may be there."""
    submits = (c for c in facts.calls if c.verb in ("submit", "batch"))
    by_key = grouped(((asked.key, call) for call in submits for asked in call.asked), lambda pair: pair[0])
    for row in facts.tasks.values():
        if row.key is not None and _all_refused([call for _, call in by_key.get(row.key, [])]):
            yield Violation(11, "is stored, and every answer said that it is not", row.id)
    for verb in ("cancel", "resolve"):
        for task, calls in grouped((c for c in facts.calls if c.verb == verb), lambda call: call.task or "").items():
            about = facts.tasks.get(task)
            asked = about is not None and about.cancel_requested
            done = asked if verb == "cancel" else task in facts.decision_about
            if done and _all_refused(calls):
                yield Violation(11, f"every {verb} was answered as not done, and it was", task)


def _all_refused(calls: list[Call]) -> bool:
    return all(call.status == 503 and not call.unknown for call in calls)


def decisions_name_their_evidence(facts: Facts) -> Iterator[Violation]:
    """12. Every decision about an `unknown` task names who or what made it, and on which evidence."""
    for decision in facts.decisions:
        yield from _audited(facts, decision)
    for call in facts.calls:
        made = facts.decision_about.get(call.task or "", [])
        if call.verb == "resolve" and call.status == 200 and call.evidence not in [each.evidence for each in made]:
            yield Violation(12, f"call {call.number} was told that it decided, and no decision is kept", call.task)
    for id, row in facts.tasks.items():
        yield from _accounted(facts, row)
        if len(facts.decision_about.get(id, [])) > 1:
            yield Violation(12, "was decided more than once", id)


def _audited(facts: Facts, decision: Decision) -> Iterator[Violation]:
    said = (decision.task, decision.decided, decision.evidence)
    if not decision.actor.strip() or not decision.evidence.strip():
        yield Violation(12, "a decision names nobody, or no evidence", decision.task)
    calls = [c for c in facts.calls_about.get(decision.task, []) if c.verb == "resolve"]
    if not any((c.task, c.decided, c.evidence) == said and (c.status == 200 or c.unknown) for c in calls):
        yield Violation(12, f"was decided ({decision.decided}), and nobody had been told so or could be in doubt",
                        decision.task)  # fmt: skip
    if decision.before.get("state") != "unknown" or _state(facts, decision.task) != decision.decided:
        yield Violation(12, f"was {decision.before.get('state')}, decided {decision.decided}, and is "
                        f"{_state(facts, decision.task)}", decision.task)  # fmt: skip


def _accounted(facts: Facts, row: Task) -> Iterator[Violation]:
    """How it came to be unknown, and how it ceased to be, stands in its events."""
    unknown = False
    for event in facts.events_of.get(row.id, []):
        if event.detail.get("to") == "unknown":
            unknown = True
        elif event.event in ("reconciled", "resolved"):
            unknown = False
        elif unknown and event.event != "receipt_mismatch":
            yield Violation(12, f"{event.event} made it {event.detail.get('to')} while it was unknown", row.id)
    if unknown != (row.state == "unknown"):
        yield Violation(12, f"is {row.state}, and its events say {'unknown' if unknown else 'known'}", row.id)
    if row.state == "unknown" and (row.cause is None or row.needs is None or not row.in_unknowns):
        yield Violation(12, "is unknown, and does not say why or what would settle it", row.id)
