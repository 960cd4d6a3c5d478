"""The endpoints that store tasks. 202 means committed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..runtime.errors import InDoubt, StatementRefused, UnknownKind
from ..runtime.store.submit import Accepted, BudgetExceeded, KeyTaken, Submission, Verdict, submit_all
from . import asking, body, keys, wire
from .front import Front, front
from .problems import Problem
from .wire import Batch, NewBatch, NewTask

_new_task = msgspec.json.Decoder(NewTask)
_new_batch = msgspec.json.Decoder(NewBatch)


async def create(request: Request) -> Response:
    """Store one task; with an Idempotency-Key once, however often it is sent."""
    here = front(request)
    await here.application.require(here.memory, here.deadline())
    key = keys.of(request)
    asked = body.decode(_new_task, await body.read(request, here.settings))
    task = asking.submission(asked, key, here.application)
    try:
        accepted = await here.writer.submit(task, here.deadline())
    except InDoubt as error:
        raise Problem(503, "outcome-in-doubt", str(error), task_id=str(task.id)) from error
    except (UnknownKind, StatementRefused) as error:
        raise refused(error, here) from error
    return _accepted(accepted)


async def create_batch(request: Request) -> Response:
    """Store up to 1,000 tasks in one transaction, all or none."""
    here = front(request)
    await here.application.require(here.memory, here.deadline())
    if "idempotency-key" in request.headers:
        raise Problem(400, "malformed-header", "a batch takes an idempotency_key in each task, not in the header")
    asked = body.decode(_new_batch, await body.read(request, here.settings)).tasks
    tasks = [_submission(new, number, here) for number, new in enumerate(asked)]
    try:
        verdicts = await here.pool.run(lambda connection: submit_all(connection, tasks), here.deadline())
    except InDoubt as error:
        ids = [str(task.id) for task in tasks]
        raise Problem(503, "outcome-in-doubt", str(error), task_ids=ids) from error
    except StatementRefused as error:
        raise refused(error, here) from error
    answer = Batch([wire.task(accepted.task) for accepted in _all(verdicts, here)])
    here.wake_workers()
    return Response(wire.encode(answer), 202, media_type="application/json")


def refused(error: UnknownKind | StatementRefused, here: Front, at: str = "") -> Exception:
    """What to answer when nothing was stored: the client's mistake, or ours for the moment."""
    if isinstance(error, UnknownKind):
        if not here.memory.read_header().ever_ready:
            detail = f"no worker of this pool has been ready yet, so the kind {error.kind!r} may still come"
            return Problem(503, "kind-not-registered-yet", f"{detail}; nothing was stored")
        return Problem(422, "unknown-kind", f"{error}{at}")
    if error.sqlstate[:2] in ("22", "54"):
        # Class 22 is data that PostgreSQL cannot represent, class 54 a limit of its own, such as depth.
        return Problem(422, "invalid-request", f"the database cannot store this payload: {error}{at}")
    return error


def _submission(new: wire.NewBatchTask, number: int, here: Front) -> Submission:
    where = f"$.tasks[{number}]"
    return asking.submission(new, keys.check(new.idempotency_key, f"{where}.idempotency_key"), here.application, where)


def _all(verdicts: Sequence[Verdict], here: Front) -> list[Accepted]:
    accepted = []
    for number, verdict in enumerate(verdicts):
        at = f" - at `$.tasks[{number}]`"
        match verdict:
            case Accepted():
                accepted.append(verdict)
            case UnknownKind():
                raise refused(verdict, here, at)
            case BudgetExceeded():
                raise Problem(422, "invalid-request", f"{verdict}{at}")
            case KeyTaken():
                raise Problem(422, "idempotency-key-reused", f"{verdict}{at}")
    return accepted


def _accepted(accepted: Accepted) -> Response:
    row = accepted.task
    headers = {"Location": f"/tasks/{row.id}", "ETag": wire.etag(row)}
    if accepted.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Response(wire.encode(wire.task(row)), 202, headers, "application/json")
