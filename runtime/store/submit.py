"""Submit: insert queued tasks, once each.

The id and the key are unique indexes, so a submit whose answer was lost is simply sent again, on a new connection: if
the first one landed, or lands while the second waits, the second stores nothing and finds it. A read alone would
prove nothing while the old session lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from .. import sql
from ..db import Connection, Row
from ..errors import DeadsureError, StatementRefused, UnknownKind
from ..parameters import Value
from . import read
from .read import TaskRow

_SUBMIT = sql.statement("submit")
_SUBMITTED = sql.statement("submitted")
_BARRIER = sql.statement("barrier")


@dataclass(frozen=True, slots=True)
class Submission:
    """One task to be stored. `payload` is JSON text; None elsewhere means the kind's own default.

    The id is made by the caller's side, so that a lost answer can be sent again and read back.
    """

    id: UUID
    kind: str
    payload: str
    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    key: str | None = None


class BudgetExceeded(DeadsureError):
    """More attempts were asked for than the kind allows; nothing was stored."""


class KeyTaken(DeadsureError):
    """The idempotency key belongs to a task that was asked for with another request; nothing was stored."""

    def __init__(self, id: UUID | None) -> None:
        """`id` None: the other request stands in the same batch, and was not stored either."""
        if id is None:
            super().__init__("two tasks of this batch have the same idempotency key, and are different requests")
        else:
            super().__init__(f"this idempotency key belongs to the task {id}, and that was another request")
        self.id = id


@dataclass(frozen=True, slots=True)
class Accepted:
    """The task that stands in the database. `replayed`: an earlier submit under the same key had stored it."""

    task: TaskRow
    replayed: bool = False


#: The answer of `submit`; of a task as it was stored a moment ago some fields are not there yet.
_stored = msgspec.json.Decoder(list[TaskRow]).decode

Verdict = Accepted | UnknownKind | BudgetExceeded | KeyTaken


#: How often a submit is tried when what stood in its way is gone by the time one looks.
_ATTEMPTS = 3


def submit(connection: Connection, tasks: Sequence[Submission]) -> list[Verdict]:
    """Store those of the tasks that can be stored, in one statement. Returns one verdict for each, in their order.

    Raises StatementRefused (surely nothing was stored) or InDoubt: call again with the same ids on a new connection.
    """
    verdicts: dict[UUID, Verdict] = {}
    left = list(tasks)
    for _ in range(_ATTEMPTS):
        verdicts |= _store(connection, left)
        left = [task for task in left if task.id not in verdicts]
        if not left:
            return [verdicts[task.id] for task in tasks]
    raise StatementRefused("what stands in the task's way keeps changing; it was not stored, send it again", "40001")


def _store(connection: Connection, tasks: Sequence[Submission]) -> dict[UUID, Verdict]:
    """One attempt. A task without a verdict: what stood in its way (its key's task, a kind that was not registered
    yet) was gone when we looked.
    """
    answer = connection.run(_SUBMIT, **_columns(tasks))[0][0]
    stored: dict[UUID, Verdict] = {row.id: Accepted(row) for row in _stored(answer)}
    missing = [task for task in tasks if task.id not in stored]
    return stored | (_look_up(connection, missing) if missing else {})


def submit_all(connection: Connection, tasks: Sequence[Submission]) -> list[Verdict]:
    """As `submit`, but all or none: with one refusal among the verdicts nothing was stored."""
    try:
        with connection.transaction():
            verdicts = submit(connection, tasks)
            if not all(isinstance(verdict, Accepted) for verdict in verdicts):
                raise _Refused(verdicts)
    except _Refused as refused:
        mine = {task.id for task in tasks}
        return [KeyTaken(None) if isinstance(v, KeyTaken) and v.id in mine else v for v in refused.verdicts]
    return verdicts


class _Refused(Exception):
    def __init__(self, verdicts: list[Verdict]) -> None:
        self.verdicts = verdicts


def _columns(tasks: Sequence[Submission]) -> dict[str, Value]:
    return {
        "ids": [task.id for task in tasks],
        "kinds": [task.kind for task in tasks],
        "payloads": [task.payload for task in tasks],
        "queues": [task.queue for task in tasks],
        "priorities": [task.priority for task in tasks],
        "run_ats": [task.run_at for task in tasks],
        "max_attempts": [task.max_attempts for task in tasks],
        "timeouts": [task.timeout for task in tasks],
        "keys": [task.key for task in tasks],
    }


def _look_up(connection: Connection, tasks: Sequence[Submission]) -> dict[UUID, Verdict]:
    found = connection.run(_SUBMITTED, **_columns(tasks))
    there = read.tasks(connection, [id for _, id, same in found if same])
    verdicts = {task.id: _verdict(task, row, there) for task, row in zip(tasks, found, strict=True)}
    if there:
        connection.run(_BARRIER)
    return {id: verdict for id, verdict in verdicts.items() if verdict is not None}


def _verdict(task: Submission, row: Row, there: dict[UUID, TaskRow]) -> Verdict | None:
    allowed, id, same = row
    if same and id in there:
        return Accepted(there[id], replayed=id != task.id)
    if id is not None and not same:
        return KeyTaken(id)
    if allowed is None:
        return UnknownKind(task.kind)
    if id is not None or task.max_attempts is None or 1 <= task.max_attempts <= allowed:
        return None
    return BudgetExceeded(f"max_attempts must be from 1 to {allowed}, the number of kind {task.kind!r}")
