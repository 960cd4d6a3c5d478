"""Reading tasks as the doors show them. Always from the primary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from .. import sql
from ..db import Connection
from ..states import State

_TASKS = sql.statement("tasks")
_PAGE = sql.statement("page")
_EVENTS = sql.statement("events_of")
_VERSIONS = sql.statement("versions")
_PING = sql.statement("ping")


class TaskRow(msgspec.Struct, frozen=True):
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


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tasks a listing shows; None is all of them."""

    state: str | None = None
    kind: str | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks, newest first. `more` is the id below which the next page begins, None at the end."""

    tasks: list[TaskRow]
    more: UUID | None


#: Above every id.
NEWEST = UUID(int=2**128 - 1)
#: How many tasks one statement looks at, and how many bytes of payloads and results it lets a page grow to.
_SCAN = 10_000
_BYTES = 4 * 1024 * 1024


def page(connection: Connection, chosen: Filter, before: UUID, count: int, bytes: int = _BYTES) -> Page:
    """The next tasks below the id `before`: at most `count`, possibly fewer although more follow."""
    rows = connection.run(
        _PAGE,
        state=chosen.state,
        kind=chosen.kind,
        queue=chosen.queue,
        before=before,
        count=count,
        scan=count + 1 if chosen == Filter() else _SCAN,
        bytes=bytes,
    )
    ids = [row[0] for row in rows[:-1]]
    found = tasks(connection, ids) if ids else {}
    # They are read a moment later: one that has changed its state since is not what was asked for.
    fits = [found[id] for id in ids if id in found and chosen.state in (None, found[id].state)]
    return Page(fits, rows[-1][1])


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened outside the normal path; `detail` is JSON text."""

    at: datetime
    event: str
    detail: str


def events(connection: Connection, id: UUID) -> list[EventRow] | None:
    """What happened to the task, oldest first; None when there is no such task."""
    rows = connection.run(_EVENTS, id=id)
    if not rows and not versions(connection, [id]):
        return None
    return [EventRow(*row) for row in rows]


def versions(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, tuple[State, int]]:
    """State and version of those of the tasks that exist."""
    return {id: (State(state), version) for id, state, version in connection.run(_VERSIONS, ids=ids)}


def ping(connection: Connection) -> None:
    """Returns when the database answers."""
    connection.run(_PING)
