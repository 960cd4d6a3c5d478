"""What a soak says: counts, what a run without a violation proves and what not, and each violation with its history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ...runtime.effects import key_for
from ..checker import Value
from .facts import Facts
from .judge import CHECKS, Judgement
from .plan import KILLS, SoakPlan
from .violations import Violation

#: So many violations are told with their history; of the others there is a count.
TOLD = 20
_WORDS: dict[Value, str] = {True: "holds", False: "VIOLATED", "unknown": "unknown"}


def line(plan: SoakPlan, kills: int, judgement: Judgement) -> str:
    """The last line of `--json`."""
    found = {
        "kills": kills,
        "lost": judgement.count("lost"),
        "duplicate_effects": judgement.count("duplicate"),
        "wrong_answers": judgement.count("wrong"),
        "unknown_with_contract": judgement.count("needless unknown"),
        "verdict": judgement.value,
        "seed": plan.seed,
    }
    return json.dumps(found, separators=(",", ":"))


def text(plan: SoakPlan, facts: Facts, faults: list[dict[str, Any]], judgement: Judgement, seconds: float) -> str:
    """The report for people."""
    return "\n".join(
        [
            *_counts(plan, facts, faults, seconds),
            *_outcomes(judgement),
            *_verdicts(judgement),
            *_bound(facts, judgement),
            *_violations(facts, judgement),
        ]
    )


def _counts(plan: SoakPlan, facts: Facts, faults: list[dict[str, Any]], seconds: float) -> Iterator[str]:
    harm = Counter(each.what for each in facts.harm)
    kills = sum(harm[what] for what in KILLS)
    yield f"seed {plan.seed}: {kills} kills in {seconds:.0f} s ({_list({w: harm[w] for w in KILLS})})"
    yield f"other harm: {_list({what: times for what, times in harm.items() if what not in KILLS})}"
    if not harm["database"]:
        yield "the database was never crashed: it is not the soak's own, or the draw had no crash"
    lost = Counter(fault["fault"] for fault in faults)
    yield f"exchanges with the database broken: {_list(lost)}; {_commits(faults)} of them a COMMIT"
    yield f"ledgers: {_list(Counter(line['event'] for book in facts.books.values() for line in book))}"
    calls = Counter((call.verb, "none" if call.status is None else str(call.status)) for call in facts.calls)
    yield f"calls: {len(facts.calls)}, {_list({f'{verb} {status}': n for (verb, status), n in sorted(calls.items())})}"
    yield f"tasks: {len(facts.tasks)}, {_list(Counter(row.state for row in facts.tasks.values()))}"
    proofs = Counter(str(e.detail.get("proof")) for e in facts.events if e.event == "recovered")
    yield f"runs: {len(facts.runs)}; recoveries by {_list(proofs)}; decisions: {len(facts.decisions)}"


def _commits(faults: list[dict[str, Any]]) -> int:
    return sum(fault["said"] == "commit" for fault in faults)


def _outcomes(judgement: Judgement) -> Iterator[str]:
    ended = judgement.outcomes
    yield f"interrupted tasks: {ended.interrupted.total()}, {_list(ended.interrupted)}"
    yield f"  wrong verdicts: {len(ended.wrong)}"
    yield f"  unknown although there was evidence that settles it: {len(ended.needless)}"
    yield f"  needed a person: {ended.person.total()} ({_list(ended.person)})"


def _verdicts(judgement: Judgement) -> Iterator[str]:
    for number, check in CHECKS.items():
        said = " ".join((check.__doc__ or "").split())
        yield f"  {_WORDS[judgement.verdicts[number]]:<9}{said}"
    for why in judgement.why:
        yield f"unknown: {why}"


def _bound(facts: Facts, judgement: Judgement) -> Iterator[str]:
    kills = sum(each.what in KILLS for each in facts.harm)
    if judgement.value is True and kills:
        bound = f"3/{kills} = {3 / kills:.2g}"
        yield f"no violation in {kills} kills: at 95 % confidence fewer than {bound} of such kills lead to one"
    else:
        yield f"verdict: {judgement.value}"


def _violations(facts: Facts, judgement: Judgement) -> Iterator[str]:
    for found in judgement.violations[:TOLD]:
        yield ""
        yield from _told(facts, found)
    if (left := len(judgement.violations) - TOLD) > 0:
        yield f"\nand {left} more"


def _told(facts: Facts, found: Violation) -> Iterator[str]:
    whose = "outcome" if found.invariant == 0 else f"invariant {found.invariant}"
    yield f"{whose} ({found.sort}): {found.task or ''} {found.what}"
    if found.task is None:
        return
    row = facts.tasks.get(found.task)
    if row is not None:
        yield f"  row: {json.dumps(asdict(row))}"
    for at, said in sorted(_history(facts, found.task), key=lambda pair: pair[0]):
        yield f"  {at:12.3f} {said}"


def _history(facts: Facts, task: str) -> Iterator[tuple[float, str]]:
    """All that is known of this task, by time.monotonic; the ledger's lines have no such time, and stand in front."""
    for line in facts.book_of.get(key_for(task), []):
        yield 0.0, f"ledger {json.dumps(line)}"
    row = facts.tasks.get(task)
    asked = [c for c in facts.calls if row is not None and any(each.key == row.key for each in c.asked)]
    for call in {call.number: call for call in [*asked, *facts.calls_about.get(task, [])]}.values():
        shown = [f"{s.state} fence {s.fence}" for s in call.shown if s.id == task]
        yield call.start, f"call {call.number} {call.verb}, until {call.end:.3f}: {call.status} {call.problem} {shown}"
    for event in facts.events_of.get(task, []):
        yield event.at, f"event {event.event} {json.dumps(event.detail)}"
    runs = [run for run in facts.runs if run.task == task]
    for run in runs:
        until = "nobody saw it end" if run.end is None else f"until {run.end:.3f}: {run.how}"
        yield run.start, f"{run.what} of process {run.pid} under fence {run.fence}, {until}"
    for each in facts.harm:
        if each.pid in {run.pid for run in runs} or any(abs(each.start - run.start) < 1 for run in runs):
            yield each.start, f"harm: {each.what} {each.pid or ''} of pool {each.pool}, until {each.end:.3f}"
    for decision in facts.decision_about.get(task, []):
        yield 0.0, f"decision {json.dumps(asdict(decision))}"


def _list(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "none"
