"""The invariants, judged by the rows alone and by what was really done outside: no model has a say in it.

The numbers are those of docs/invariants.md.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from .provider import Provider

Rows = dict[Any, dict[str, Any]]


def judge(tables: dict[str, Rows], events: dict[UUID, list[list[Any]]], provider: Provider) -> None:
    """Raises AssertionError with the invariant's number and the row that violates it."""
    decided = {row["task_id"] for row in tables["decision"].values()}
    for id, row in tables["task"].items():
        _alone(row, decided, provider)
        _among(row, tables, events.get(id, []))
    for table in ("ready", "scheduled", "unknown"):
        alone = set(tables[table]) - set(tables["task"])
        assert not alone, f"rows of {table} without a task (5, 12): {alone}"
    _slots(tables)


def _alone(row: dict[str, Any], decided: set[str], provider: Provider) -> None:
    """What a row says by itself, and what was really done outside."""
    id, state = UUID(row["id"]), row["state"]
    assert (row["result"] is not None) <= (state == "succeeded"), f"a result without success (3): {row}"
    assert row["attempts"] <= row["max_attempts"], f"spent more than its budget (9): {row}"
    assert not (state == "queued" and row["cancel_requested"]), f"queued after a cancel request (10): {row}"
    assert provider.done[id] <= 1, f"the effect was done {provider.done[id]} times (7, 8): {row}"
    if row["receipt"] is not None:
        assert provider.done[id] == 1, f"a receipt for nothing (7): {row}"
    if state in ("failed", "canceled") and row["id"] not in decided:
        assert not provider.done[id], f"{state} although it was done (10): {row}"
        assert not provider.on_its_way(id), f"{state} while a request may still arrive (10): {row}"


def _among(row: dict[str, Any], tables: dict[str, Rows], events: list[list[Any]]) -> None:
    """What a row says together with those of the other tables."""
    id, state = UUID(row["id"]), row["state"]
    ready, scheduled = tables["ready"].get(id), tables["scheduled"].get(id)
    if state == "queued":
        assert (ready is None) != (scheduled is None), f"not in exactly one of ready and scheduled (5): {row}"
        there = ready or scheduled or {}
        for column in set(there) - {"batchable", "due"}:
            assert there[column] == row[column], f"it stands in the wrong place (5): {there}, {row}"
    elif ready is not None or scheduled is not None:
        assert row["cancel_requested"], f"a row of ready or scheduled for what is {state} (5): {row}"
    if state == "running":
        slot = tables["slot"][UUID(row["owner"])]
        assert not slot["ended"], f"running under a slot that has ended (1): {row}"
        names = list(zip(slot["task_ids"], slot["fences"], strict=True))
        assert (row["id"], row["fence"]) in names, f"the slot does not name it (1): {slot}, {row}"
        together = row["on_death"] == "requeue" and row["max_attempts"] >= 2 and row["attempts"] == 1
        assert together or len(names) == 1, f"it runs beside others (1): {slot}, {row}"
    assert (state == "unknown") == (id in tables["unknown"]), f"unknown and unknowns disagree (12): {row}"
    if state == "unknown":
        assert tables["unknown"][id]["needs"] == row["unknown_needs"], f"they need different things (12): {row}"
        assert any(event[1] == "unknown" for event in events), f"unknown without evidence (12): {row}"


def _slots(tables: dict[str, Rows]) -> None:
    """No slot stays open under an incarnation that has ended, and none has more than it names (1, 4)."""
    for row in tables["slot"].values():
        lives = tables["incarnation"][UUID(row["incarnation"])]["ended_at"] is None
        assert lives or row["ended"], f"an open slot under an incarnation that has ended (4): {row}"
