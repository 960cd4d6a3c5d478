"""The endpoints that settle `unknown`: have it looked up now, or decide."""

from __future__ import annotations

import re
from uuid import UUID, uuid5

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..runtime import db
from ..runtime.errors import NotStorable
from ..runtime.executor import encode_result
from ..runtime.ids import uuid7
from ..runtime.states import State
from ..runtime.store import read, reconcile
from ..runtime.store.read import TaskRow
from ..runtime.store.reconcile import Decision, Undecided
from . import body, keys, wire
from .access import LOOPBACK
from .front import front
from .problems import Problem
from .tasks import no_such_task, task_id

_resolution = msgspec.json.Decoder(wire.Resolution)
#: RFC 9110, section 13.1.1. Only one strong tag of digits can be a task's version.
TAGS = r'^(\*|(W/)?"[!#-~\u0080-\u00ff]*"( *, *(W/)?"[!#-~\u0080-\u00ff]*")*)$'
ACTOR = "^[!-~]([ -~]{0,98}[!-~])?$"
_TAGS = re.compile(TAGS)
_VERSION = re.compile(r'"([1-9][0-9]{0,17})"')
_ACTOR = re.compile(ACTOR)
_EVIDENCE = re.compile(wire.EVIDENCE)
#: The version of no task.
_NO_VERSION = -1


async def look_up(request: Request) -> Response:
    """Have an unknown task looked up at its provider now."""
    here = front(request)
    id = await task_id(request, here)

    def ask(connection: db.Connection) -> tuple[tuple[str, bool] | None, TaskRow | None]:
        return reconcile.ask_now(connection, id), read.task(connection, id)

    found, row = await here.pool.run(ask, here.deadline())
    if found is None or row is None:
        raise no_such_task(id)
    state, can = found
    if state != State.UNKNOWN:
        raise Problem(409, "not-unknown", f"the task is {state}; there is nothing to look up", state=state)
    if not can:
        said = "its provider has no contract that could settle it; a decision is needed (POST .../resolution)"
        raise Problem(409, "decision-needed", said, state=state)
    here.wake_workers()
    return Response(wire.encode(wire.task(row)), 202, {"ETag": wire.etag(row)}, "application/json")


async def resolve(request: Request) -> Response:
    """Decide about an unknown task, with evidence. Kept for ever with who decided. With an Idempotency-Key a repeat of
    the same decision is answered like the first.
    """
    here = front(request)
    id = await task_id(request, here)
    version = _version(request)
    key = keys.of(request)
    asked = body.decode(_resolution, await body.read(request, here.settings))
    # The key's decision has the same id however often it is sent; without one only this request can repeat it.
    made = uuid7() if key is None else uuid5(id, key)
    decision = Decision(made, id, version, asked.state, _evidence(asked), _actor(request), _result(asked))

    repeated = False

    def carry_out(connection: db.Connection) -> TaskRow | None:
        nonlocal repeated
        again, repeated = repeated, True
        reconcile.resolve(connection, decision, again)
        return read.task(connection, id)

    try:
        row = await here.pool.run(carry_out, here.deadline())
    except Undecided as undecided:
        raise _refused(id, undecided) from None
    if row is None:
        raise no_such_task(id)
    return Response(wire.encode(wire.task(row)), 200, {"ETag": wire.etag(row)}, "application/json")


def _version(request: Request) -> int:
    """The version that the person saw. Raises Problem: 428 without If-Match, 400 for one that is none."""
    values = request.headers.getlist("if-match")
    if not values:
        raise Problem(428, "precondition-required", "send the task's ETag as If-Match: decide about what you have seen")
    tags = ", ".join(values)
    if not _TAGS.fullmatch(tags):
        raise Problem(400, "malformed-header", "If-Match must be the ETag that the task had when you read it")
    found = _VERSION.fullmatch(tags)
    return _NO_VERSION if found is None else int(found[1])


def _evidence(asked: wire.Resolution) -> str:
    if "\0" in asked.evidence:
        raise Problem(400, "malformed-json", "a text holds the character NUL - at `$.evidence`")
    if not _EVIDENCE.fullmatch(asked.evidence):
        raise Problem(422, "invalid-request", "evidence must say how you know - at `$.evidence`")
    return asked.evidence.strip(" \t\r\n\v\f")


def _result(asked: wire.Resolution) -> str | None:
    if asked.result is None:
        return None
    if asked.state != "succeeded":
        raise Problem(422, "invalid-request", "only a task that succeeded has a result - `$.result`")
    try:
        return encode_result(asked.result)
    except NotStorable as error:
        raise Problem(400, "malformed-json", f"{error} - `$.result`") from None


def _actor(request: Request) -> str:
    """Who decides: the token's name, or whoever on this machine, with the name that was claimed."""
    actor: str = request.state.actor
    claimed = request.headers.get("deadsure-actor")
    if claimed is not None and not _ACTOR.fullmatch(claimed):
        raise Problem(400, "malformed-header", "Deadsure-Actor must be 1 to 100 visible ASCII characters")
    if claimed is None or actor != LOOPBACK:
        return actor
    return f"loopback (claimed: {claimed})"


def _refused(id: UUID, undecided: Undecided) -> Problem:
    if undecided.why == "no_such_task":
        return no_such_task(id)
    if undecided.why == "other_decision":
        said = "this idempotency key belongs to another decision about this task; this one was not taken"
        return Problem(422, "idempotency-key-reused", said, state=undecided.state)
    if undecided.why == "version":
        since = "somebody has decided since you read it, or a lookup has"
        said = f"If-Match is not the task's present ETag: {since}; read it again"
        return Problem(412, "changed-meanwhile", said, state=undecided.state)
    said = f"the task is {undecided.state}, not unknown; there is nothing to decide"
    return Problem(409, "not-unknown", said, state=undecided.state)
