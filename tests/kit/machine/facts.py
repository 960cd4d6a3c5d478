"""What the database shows after each step, held against the model and against what it showed before."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from deadsure.runtime.db import Connection
from deadsure.runtime.sql import Statement

from .judge import Rows, judge
from .provider import Provider
from .rows import TERMINAL, Model, Task

_LOOK = Statement(
    "look",
    """
select jsonb_build_object(
  'task', (select coalesce(jsonb_agg(to_jsonb(t)), '[]') from deadsure.tasks t),
  'ready', (select coalesce(jsonb_agg(to_jsonb(r)), '[]') from deadsure.ready r),
  'scheduled', (select coalesce(jsonb_agg(to_jsonb(s) || jsonb_build_object('due', s.run_at <= clock_timestamp())),
                                '[]') from deadsure.scheduled s),
  'unknown', (select coalesce(jsonb_agg(to_jsonb(u) || jsonb_build_object('due', u.lookup_at <= clock_timestamp())),
                              '[]') from deadsure.unknowns u),
  'slot', (select coalesce(jsonb_agg(to_jsonb(s)), '[]') from deadsure.slots s),
  'incarnation', (select coalesce(jsonb_agg(to_jsonb(i)
                                            || jsonb_build_object('over', i.lease_until < clock_timestamp())), '[]')
                    from deadsure.incarnations i),
  'decision', (select coalesce(jsonb_agg(to_jsonb(d)), '[]') from deadsure.decisions d),
  'event', (select coalesce(jsonb_agg(jsonb_build_array(e.task_id, e.event, e.detail ->> 'to',
                            cast(e.detail ->> 'fence' as bigint), e.detail ->> 'proof') order by e.number), '[]')
              from deadsure.events e))
""",
)
_IDS = {"task": "id", "ready": "id", "scheduled": "id", "unknown": "id", "slot": "slot", "incarnation": "incarnation",
        "decision": "decision"}  # fmt: skip


@dataclass
class Facts:
    """The last look at the database, and what must never change again."""

    tables: dict[str, Rows] = field(default_factory=lambda: {table: {} for table in _IDS})
    events: dict[UUID, list[list[Any]]] = field(default_factory=dict)

    def look(self, connection: Connection, model: Model, provider: Provider) -> None:
        """Read everything and judge it. Raises AssertionError with what is wrong."""
        read = connection.run(_LOOK)[0][0]
        tables = {table: {UUID(row[id]): row for row in read[table]} for table, id in _IDS.items()}
        for table, rows in tables.items():
            assert len(rows) == len(read[table]), f"{table} has several rows for one: {read[table]}"
        events: dict[UUID, list[list[Any]]] = {}
        for id, *event in read["event"]:
            events.setdefault(UUID(id), []).append(event)
        for id in model.pruned:
            self.tables["task"].pop(id, None)
            self.events.pop(id, None)
            provider.erase(id)
        self._untouched(tables, model)
        self._never_back(tables, events)
        judge(tables, events, provider)
        _as_predicted(tables, events, model)
        _learn(tables, model)
        self.tables, self.events = tables, events
        model.touched.clear()
        model.pruned.clear()

    def _untouched(self, tables: dict[str, Rows], model: Model) -> None:
        """A verb that changes nothing, or another row, leaves each row exactly as it is (2)."""
        for table, rows in tables.items():
            for id, row in rows.items():
                before = self.tables[table].get(id)
                if before is not None and (table, id) not in model.touched:
                    assert row == before, f"{table} was changed by nobody: {_difference(before, row)}"

    def _never_back(self, tables: dict[str, Rows], events: dict[UUID, list[list[Any]]]) -> None:
        """What is over never changes (2), fences and spent attempts never fall (9), requests and events stay (10)."""
        for id, row in tables["task"].items():
            before = self.tables["task"].get(id)
            if before is None:
                continue
            assert row["fence"] >= before["fence"], f"a fence fell: {row}"
            released = row["state"] in ("queued", "canceled") and before["state"] == "running"
            assert row["attempts"] >= before["attempts"] - released, f"an attempt was forgotten: {row}"
            assert row["cancel_requested"] or not before["cancel_requested"], f"a cancel request was lost: {row}"
            if before["state"] in TERMINAL:
                assert row == before, f"it was over: {_difference(before, row)}"
            for kept in ("request", "intent", "fingerprint", "effect_key"):
                assert before[kept] in (None, row[kept]), f"another {kept} under the same key: {row}"
            old = self.events.get(id, [])
            assert events.get(id, [])[: len(old)] == old, f"its events changed: {row}"


def _as_predicted(tables: dict[str, Rows], events: dict[UUID, list[list[Any]]], model: Model) -> None:
    """The rows are those of the model, neither more nor fewer nor others."""
    for table, rows in tables.items():
        there, expected = set(rows), {row.id for row in model.all(table)}
        assert there == expected, f"{table}: too many {there - expected}, missing {expected - there}"
    for id, row in tables["task"].items():
        _same(_of_task(row), _expected(model.rows[("task", id)]), row)
        told = [(event.event, event.to, event.fence, event.proof) for event in model.rows[("task", id)].events]
        assert [tuple(event) for event in events.get(id, [])] == told, f"its events are others than {told}: {row}"
    for table, columns in _COLUMNS.items():
        for id, row in tables[table].items():
            expected = model.rows[(table, id)]
            _same({c: row[n] for c, n in columns.items()}, {c: getattr(expected, c) for c in columns}, row)
    for id, row in tables["slot"].items():
        names = {(UUID(task), fence) for task, fence in zip(row["task_ids"], row["fences"], strict=True)}
        assert names == model.rows[("slot", id)].names, f"the slot names others than it holds: {row}"


_COLUMNS = {
    "ready": {"queue": "queue", "priority": "priority", "kind": "kind", "batchable": "batchable"},
    "scheduled": {"due": "due"},
    "unknown": {"needs": "needs", "due": "due", "lookups": "lookups"},
    "slot": {"token": "token", "ended": "ended"},
    "incarnation": {"token": "token", "over": "over", "ended_by": "ended_by"},
}


def _of_task(row: dict[str, Any]) -> dict[str, Any]:
    same = ("state", "attempts", "fence", "version", "cancel_requested", "on_death", "unsettled", "unsettled_earlier",
            "perform_fence", "queue", "priority", "max_attempts")  # fmt: skip
    return {name: row[name] for name in same} | {
        "owner": row["owner"] and UUID(row["owner"]),
        "identity": row["provider_identity"],
        "cause": row["unknown_cause"],
        "needs": row["unknown_needs"],
        "key": row["idempotency_key"],
        "performed": row["first_perform_at"] is not None,
        "sender": row["sender_gone_at"] is not None,
        "receipt": row["receipt"] is not None,
    }


def _expected(task: Task) -> dict[str, Any]:
    shown = {name: getattr(task, name) for name in task.__dataclass_fields__}
    for name in ("id", "kind", "decided", "events", "requests"):
        del shown[name]
    return shown | {"performed": task.performed is not None, "sender": task.sender is not None}


def _learn(tables: dict[str, Rows], model: Model) -> None:
    """Take over the times that only the database's clock knows."""
    for id, row in tables["ready"].items():
        at = datetime.fromisoformat(row["run_at"])
        model.rows[("ready", id)] = replace(model.rows[("ready", id)], run_at=at)
    for id, row in tables["unknown"].items():
        at = datetime.fromisoformat(row["lookup_at"])
        model.rows[("unknown", id)] = replace(model.rows[("unknown", id)], at=at)


def _same(there: dict[str, Any], expected: dict[str, Any], row: dict[str, Any]) -> None:
    wrong = [f"{name} is {there[name]!r}, not {expected[name]!r}" for name in there if there[name] != expected[name]]
    assert not wrong, f"{'; '.join(wrong)}: {row}"


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    return "; ".join(f"{name} {before[name]!r} -> {after[name]!r}" for name in before if before[name] != after[name])
