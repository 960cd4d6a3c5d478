"""What goes over the wire: requests as they are decoded, tasks as they are shown. OpenAPI is made from these types."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..runtime.states import State
from ..runtime.store.read import EventRow, TaskRow
from . import keys

#: What no name may hold: control characters, white space but a plain one inside, marks that cannot be seen.
_UNSEEN = (
    r"\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000"
    r"\ufeff\ufff9-\ufffb"
)
#: Patterns that the document shows and the endpoints hold requests against: written so that ECMA 262 and Python agree.
NAME = rf"^[^ {_UNSEEN}]([^{_UNSEEN}]*[^ {_UNSEEN}])?$"
#: In the first and the last year only UTC: elsewhere these can begin before, or end after, what a calendar holds.
YEARS = (
    "^((000[2-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])-.*"
    "|(0001|9999)-.*([Zz]|[+-]00:00))$"
)
EVIDENCE = r"^[^\u0000]*[^\u0000-\u0020\u007f-\u00a0][^\u0000]*$"

Name = Annotated[str, Meta(min_length=1, max_length=200, extra_json_schema={"pattern": NAME})]
#: Whole numbers as JSON Schema understands them: 3.0 and 3e0 are 3.
Whole = Annotated[float, Meta(ge=-(2**31), lt=2**31, multiple_of=1, description="smaller first")]
Positive = Annotated[float, Meta(ge=1, lt=2**31, multiple_of=1)]
#: JSON that can be stored; openapi.py has its schema.
_STORABLE = Meta(extra_json_schema={"$ref": "#/components/schemas/Json"})
Moment = Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
Time = Annotated[
    str, Meta(description="RFC 3339, with its zone", extra_json_schema={"format": "date-time", "pattern": YEARS})
]


class NewTask(msgspec.Struct, forbid_unknown_fields=True):
    """A task to be submitted. What is left out comes from the kind."""

    kind: Name
    payload: Annotated[msgspec.Raw, _STORABLE]
    queue: Name | None = None
    priority: Whole | None = None
    run_at: Time | None = None
    max_attempts: Positive | None = None
    timeout: Annotated[float, Meta(gt=0, lt=1e9, description="seconds from the handler's start")] | None = None


class NewBatchTask(NewTask, forbid_unknown_fields=True):
    """One task of a batch."""

    idempotency_key: Annotated[str, Meta(extra_json_schema={"pattern": keys.BARE})] | None = None


class NewBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Tasks that are stored all together or not at all."""

    tasks: Annotated[list[NewBatchTask], Meta(min_length=1, max_length=1000)]


class Resolution(msgspec.Struct, forbid_unknown_fields=True):
    """A person's decision about an unknown task. `result` only for one that succeeded."""

    state: Literal["succeeded", "failed", "canceled"]
    evidence: Annotated[
        str, Meta(min_length=1, max_length=10_000, description="how you know", extra_json_schema={"pattern": EVIDENCE})
    ]
    result: Annotated[Any, _STORABLE] = None


class Unknown(msgspec.Struct):
    """Why nobody can say whether it happened, and what would settle it."""

    since: Moment | None
    cause: str | None
    proof: str | None
    signal: str | None
    phase: str | None
    needs: str | None


class Effect(msgspec.Struct):
    """The act outside the database."""

    provider: str
    key: str | None
    fingerprint: str | None
    receipt: msgspec.Raw | None


class Task(msgspec.Struct):
    """A task as the API shows it."""

    id: UUID
    kind: str
    queue: str
    priority: int
    state: State
    payload: msgspec.Raw
    result: msgspec.Raw | None
    failure_reason: str | None
    cancel_requested: bool
    attempts: int
    max_attempts: int
    timeout: float | None
    fence: int
    created_at: Moment
    run_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    unknown: Unknown | None
    effect: Effect | None


class Batch(msgspec.Struct):
    """The tasks of a batch, in the order in which they were sent."""

    tasks: list[Task]


class Page(msgspec.Struct):
    """Tasks, newest first. `next` is the cursor of the next page, null at the end."""

    tasks: list[Task]
    next: str | None


class Event(msgspec.Struct):
    """Something that happened to a task outside the normal path."""

    at: Moment
    event: str
    detail: msgspec.Raw


class Events(msgspec.Struct):
    """What happened to one task, oldest first."""

    events: list[Event]


class Worker(msgspec.Struct):
    """One seat of the pool on this host. `since` is when its state began; `exits` counts deaths on this seat.

    `pid` is null while nobody sits there and the next worker waits to be started.
    """

    slot: int
    pid: int | None
    state: str
    task: UUID | None
    since: Moment
    exits: int
    last_exit: str | None


class Workers(msgspec.Struct):
    """The pool on this host."""

    workers: list[Worker]


class Status(msgspec.Struct):
    """A probe's answer."""

    status: str


class ProblemDetails(msgspec.Struct):
    """Every answer that is not 2xx or 304 (RFC 9457). Some problems have further members."""

    type: str
    title: str
    status: int
    detail: str
    state: State | UnsetType = UNSET
    missing: list[str] | UnsetType = UNSET
    task_id: UUID | UnsetType = UNSET
    task_ids: list[UUID] | UnsetType = UNSET


_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    """A wire value as JSON."""
    return _encoder.encode(value)


def task(row: TaskRow) -> Task:
    """A stored task as it is shown."""
    return Task(
        id=row.id,
        kind=row.kind,
        queue=row.queue,
        priority=row.priority,
        state=State(row.state),
        payload=msgspec.Raw(row.payload),
        result=_raw(row.result),
        failure_reason=row.failure_reason,
        cancel_requested=row.cancel_requested,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        timeout=row.timeout,
        fence=row.fence,
        created_at=row.created_at,
        run_at=row.run_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        unknown=_unknown(row),
        effect=_effect(row),
    )


def etag(row: TaskRow) -> str:
    """The task's version as an entity tag. Every write raises it."""
    return f'"{row.version}"'


def event(row: EventRow) -> Event:
    """A stored event as it is shown."""
    return Event(row.at, row.event, msgspec.Raw(row.detail))


def _unknown(row: TaskRow) -> Unknown | None:
    if row.unknown_cause is None:
        return None
    return Unknown(
        row.unknown_since,
        row.unknown_cause,
        row.unknown_proof,
        row.unknown_signal,
        row.unknown_phase,
        row.unknown_needs,
    )


def _effect(row: TaskRow) -> Effect | None:
    if row.provider is None:
        return None
    return Effect(row.provider, row.effect_key, row.fingerprint, _raw(row.receipt))


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text)
