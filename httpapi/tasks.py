"""The endpoints that read and cancel tasks."""

from __future__ import annotations

import re
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from ..runtime import db
from ..runtime.ids import uuid7
from ..runtime.states import State
from ..runtime.store import cancel as store
from ..runtime.store import read
from ..runtime.store.read import TaskRow
from . import preconditions, wire
from .front import Front, front
from .problems import Problem
from .wire import Events

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


async def show(request: Request) -> Response:
    """One task; with `Prefer: wait=N` once it has changed or ended, with If-None-Match only when it has changed."""
    here = front(request)
    id = await task_id(request, here)
    row = await _read(here, id)
    applied = preconditions.wait(request)
    if applied is not None and not preconditions.answers(request, State(row.state), row.version):
        await preconditions.until_changed(request, id, applied, here.waiters)
        row = await _read(here, id)
    headers = {"ETag": wire.etag(row)}
    if applied is not None:
        headers["Preference-Applied"] = f"wait={applied}"
    if preconditions.seen(request, row.version):
        return Response(status_code=304, headers=headers)
    return Response(wire.encode(wire.task(row)), 200, headers, "application/json")


async def events(request: Request) -> Response:
    """What happened to a task outside the normal path."""
    here = front(request)
    id = await task_id(request, here)
    rows = await here.pool.run(lambda connection: read.events(connection, id), here.deadline())
    if rows is None:
        raise no_such_task(id)
    return Response(wire.encode(Events([wire.event(row) for row in rows])), media_type="application/json")


async def cancel(request: Request) -> Response:
    """Cancel a task that is queued, ask the handler of one that runs to stop. May be repeated."""
    here = front(request)
    id = await task_id(request, here)
    actor: str = request.state.actor
    this = uuid7()

    def carry_out(connection: db.Connection) -> TaskRow | None:
        store.cancel(connection, id, actor, this)
        return read.task(connection, id)

    row = await here.pool.run(carry_out, here.deadline())
    if row is None:
        raise no_such_task(id)
    if row.state in (State.SUCCEEDED, State.FAILED):
        raise Problem(409, "already-finished", f"the task has {row.state}; nothing was changed", state=row.state)
    _tell_worker(here, row)
    return Response(wire.encode(wire.task(row)), 202, {"ETag": wire.etag(row)}, "application/json")


async def _read(here: Front, id: UUID) -> TaskRow:
    row = await here.pool.run(lambda connection: read.task(connection, id), here.deadline())
    if row is None:
        raise no_such_task(id)
    return row


async def task_id(request: Request, here: Front) -> UUID:
    """The task's id. What cannot be one is answered with 404 like the others: after the database has answered."""
    text = request.path_params["id"]
    if not _ID.fullmatch(text):
        await here.pool.run(lambda connection: read.task(connection, UUID(int=0)), here.deadline())
        raise no_such_task("of that id (it must be a UUID)")
    return UUID(text)


def no_such_task(id: UUID | str) -> Problem:
    """The answer when the database has said that there is none."""
    return Problem(404, "no-such-task", f"there is no task {id}")


def _tell_worker(here: Front, row: TaskRow) -> None:
    """Raise the flag that the handler looks at, if the task runs on this host."""
    if row.state != State.RUNNING:
        return
    for seat in here.memory.seats:
        box = seat.read_box()
        if box is not None and box.task == row.id and box.fence == row.fence:
            seat.request_cancel(row.id, row.fence)
