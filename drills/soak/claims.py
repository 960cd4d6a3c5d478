"""Invariants 1 to 5 and 9: claims, finishes, results, recoveries, queues, attempts."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from math import inf

from .facts import TERMINAL, Event, Facts, Task, grouped
from .history import Call, Shown
from .violations import Violation

_PROOFS = ("exit", "pool_lock", "lease")
#: These say that the process is dead; a lease only says that it may write nothing any more.
_OF_DEATH = ("exit", "pool_lock")


def one_worker_per_fence(facts: Facts) -> Iterator[Violation]:
    """1. A task is claimed by exactly one worker per fence, and a slot names every task its worker holds."""
    for task, runs in facts.runs_of.items():
        for fence, same in grouped(runs, lambda run: run.fence).items():
            if len(same) > 1:
                who = ", ".join(str(run.pid) for run in same)
                yield Violation(1, f"was run {len(same)} times under fence {fence}, by {who}", task, "duplicate")
    for task, at in _first((look.at, look.unnamed) for look in facts.looks):
        yield Violation(1, f"ran at {at:.3f}, and no slot named it", task)
    for slot, task, fence in facts.stray_slots:
        yield Violation(1, f"the slot {slot} names it under fence {fence}, and does not hold it", task)
    for row in facts.tasks.values():
        if row.state == "running":
            yield Violation(1, "is running, and no pool is there any more", row.id)


def a_stale_finish_changes_nothing(facts: Facts) -> Iterator[Violation]:
    """2. A finish with a stale fence, a foreign owner, or on a terminal task changes nothing."""
    for task, row in facts.tasks.items():
        yield from _forward(row, facts.calls_about.get(task, []))
        plain = facts.kinds[row.kind].mode is None
        if plain and row.state == "succeeded" and task not in facts.decision_about:
            yield from _own_result(facts, row)


def _own_result(facts: Facts, row: Task) -> Iterator[Violation]:
    made = row.result.get("fence") if isinstance(row.result, dict) else None
    if made != row.fence:
        yield Violation(2, f"has the result of fence {made}, and its own is {row.fence}", row.id)
    elif not any(run.fence == made and run.how == "returned" for run in facts.runs_of.get(row.id, [])):
        yield Violation(2, f"has succeeded, and no handler returned under fence {made}", row.id)


def _forward(row: Task, calls: list[Call]) -> Iterator[Violation]:
    """Whoever asked after another had been answered saw the same or more; and nothing after the end."""
    end = Shown(row.id, row.kind, row.state, row.fence, row.attempts, row.max_attempts, row.cancel_requested,
                row.payload, row.result, row.version)  # fmt: skip
    seen = [(call.start, call.end, each) for call in calls for each in call.shown if each.id == row.id]
    seen.append((inf, inf, end))
    answered: list[tuple[float, int, Shown]] = []
    latest: Shown | None = None
    for number, (start, ended, now) in enumerate(sorted(seen, key=lambda one: one[0])):
        while answered and answered[0][0] < start:
            before = heapq.heappop(answered)[2]
            latest = before if latest is None or _order(before) >= _order(latest) else latest
        if latest is not None:
            yield from _step(row.id, latest, now)
        heapq.heappush(answered, (ended, number, now))


def _order(shown: Shown) -> tuple[int, int, bool]:
    return shown.fence, shown.version or 0, shown.state in TERMINAL


def _step(task: str, before: Shown, now: Shown) -> Iterator[Violation]:
    if now.fence < before.fence:
        yield Violation(2, f"its fence went back from {before.fence} to {now.fence}", task)
    if None not in (now.version, before.version) and (now.version or 0) < (before.version or 0):
        yield Violation(2, f"its version went back from {before.version} to {now.version}", task)
    if before.state in TERMINAL and (now.state, now.result) != (before.state, before.result):
        yield Violation(2, f"was shown {before.state}, and later {now.state} or with another result", task)


def no_result_without_succeeded(facts: Facts) -> Iterator[Violation]:
    """3. No result without `succeeded`."""
    for row in facts.tasks.values():
        if row.has_result != (row.state == "succeeded"):
            yield Violation(3, f"is {row.state} {'with' if row.has_result else 'without'} a result", row.id)
    for call in facts.calls:
        for shown in call.shown:
            if shown.result is not None and shown.state != "succeeded":
                yield Violation(3, f"call {call.number} showed it {shown.state} with a result", shown.id)


def no_recovery_without_proof(facts: Facts) -> Iterator[Violation]:
    """4. No recovery without proof; a living worker's task is never recovered but by an expired lease."""
    for event in facts.events:
        if event.event != "recovered":
            continue
        if event.detail.get("proof") not in _PROOFS:
            yield Violation(4, f"was recovered with the proof {event.detail.get('proof')}", event.task)
        elif event.detail["proof"] in _OF_DEATH:
            yield from _alive(facts, event)
    for incarnation in facts.incarnations:
        if incarnation.ended_by == "lease" and not incarnation.lease_was_over:
            yield Violation(4, f"the incarnation {incarnation.id} was ended by its lease, which was not over")


def _alive(facts: Facts, event: Event) -> Iterator[Violation]:
    for run in facts.runs_of.get(event.task, []):
        sign = run.start if run.end is None else run.end
        if run.fence == event.detail["fence"] - 1 and sign > event.at + facts.slack:
            late = f"{sign - event.at:.3f} s later process {run.pid} was alive in it"
            yield Violation(4, f"was recovered by {event.detail['proof']}, and {late}", event.task)


def queued_survives(facts: Facts) -> Iterator[Violation]:
    """5. Every queued task stands in ready or scheduled."""
    for task, at in _first((look.at, look.nowhere) for look in facts.looks):
        yield Violation(5, f"was queued at {at:.3f}, and stood in neither ready nor scheduled", task, "lost")


def _first(looks: Iterable[tuple[float, tuple[str, ...]]]) -> Iterator[tuple[str, float]]:
    """Each task once, with when it was first seen."""
    met: set[str] = set()
    for at, tasks in looks:
        yield from ((task, at) for task in tasks if task not in met)
        met.update(tasks)


def attempts_within_budget(facts: Facts) -> Iterator[Violation]:
    """9. attempts <= max_attempts, by the row, by every answer, and by what really ran."""
    for row in facts.tasks.values():
        allowed = facts.kinds[row.kind].max_attempts
        ran = facts.runs_of.get(row.id, [])
        if row.attempts > row.max_attempts or row.max_attempts > allowed:
            yield Violation(9, f"has {row.attempts} attempts of {row.max_attempts}; its kind allows {allowed}", row.id)
        if (times := len({run.fence for run in ran})) > row.attempts:
            yield Violation(9, f"was run under {times} fences, and counts {row.attempts} attempts", row.id)
        if any(run.attempt > row.max_attempts for run in ran):
            yield Violation(9, f"ran attempt {max(run.attempt for run in ran)} of {row.max_attempts}", row.id)
    for call in facts.calls:
        for shown in call.shown:
            if shown.attempts > shown.max_attempts:
                yield Violation(9, f"call {call.number} showed {shown.attempts} of {shown.max_attempts}", shown.id)
