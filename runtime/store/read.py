"""Reading tasks as the doors show them. Always from the primary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from .. import sql
from ..db import Connection

_TASKS = sql.statement("tasks")
_PING = sql.statement("ping")


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of tasks; `payload`, `result` and `receipt` are JSON text."""

    id: UUID
    kind: str
    queue: str
    priority: int
    state: str
    payload: str
    result: str | None
    failure_reason: str | None
    cancel_requested: bool
    attempts: int
    max_attempts: int
    timeout: float | None
    fence: int
    version: int
    created_at: datetime
    run_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    unknown_since: datetime | None = None
    unknown_cause: str | None = None
    unknown_proof: str | None = None
    unknown_signal: str | None = None
    unknown_phase: str | None = None
    unknown_needs: str | None = None
    provider: str | None = None
    effect_key: str | None = None
    fingerprint: str | None = None
    receipt: str | None = None


def task(connection: Connection, id: UUID) -> TaskRow | None:
    """The task, or None after the primary said that there is no such row."""
    return tasks(connection, [id]).get(id)


def tasks(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, TaskRow]:
    """Those of the tasks that exist, by id."""
    return {row[0]: TaskRow(*row) for row in connection.run(_TASKS, ids=ids)}


def ping(connection: Connection) -> None:
    """Returns when the database answers."""
    connection.run(_PING)
