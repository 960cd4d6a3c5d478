"""What a drill says: one JSON line, whose first keys and their order are fixed."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .checker import Verdict
from .facts import Facts
from .plan import Plan

KEYS = ("window", "signal", "attempts", "effects", "post_calls", "state")
MORE = ("fence", "cancel_requested", "lookup", "key_preserved", "proof", "death_to_recovered_ms", "task_id")
_COLUMNS = ("window", "provider", "confirm", "attempt", "cancel", "state", "attempts", "effects", "posts", "verdict")
_WIDTHS = (14, 12, 10, 8, 7, 10, 9, 8, 6, 8)


def line(facts: Facts, *, full: bool = False) -> str:
    """The fact table as JSON."""
    keys = KEYS + (MORE if full else ())
    return json.dumps({key: getattr(facts, key) for key in keys}, separators=(",", ":"))


def header() -> str:
    """The first line of the matrix."""
    return _row(_COLUMNS)


def row(plan: Plan, facts: Facts | None, verdict: Verdict) -> str:
    """One cell of the matrix, as a line of the table; below it what is not as promised."""
    found = ("-",) * 4 if facts is None else (facts.state, facts.attempts, facts.effects, facts.post_calls)
    said = {True: "ok", False: "WRONG", "unknown": "unknown"}[verdict.value]
    cells = (plan.window, plan.provider, plan.confirm, plan.attempt, "yes" if plan.cancel else "no", *found, said)
    return "\n".join([_row(cells), *(f"    {text}" for text in verdict.why)])


def _row(cells: Iterable[object]) -> str:
    return "".join(str(cell).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
