"""Probes, and the pool as this host's shared memory shows it. Only /readyz asks the database."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from ..runtime.blackbox import Seating, SeatMemory, worker_state
from ..runtime.errors import SchemaMismatch, StoreError
from ..runtime.store import migrate
from . import problems, wire
from .front import Front, front


async def livez(_: Request) -> Response:
    """200 while this process can answer at all."""
    return Response(wire.encode(wire.Status("live")), media_type="application/json")


async def readyz(request: Request) -> Response:
    """200 when a task that is submitted now will be run by this pool; else 503 that names what is missing."""
    missing = await _missing(front(request))
    if missing:
        return problems.respond(problems.Problem(503, "not-ready", "; ".join(missing), missing=missing))
    return Response(wire.encode(wire.Status("ready")), media_type="application/json")


async def workers(request: Request) -> Response:
    """Every seat of the pool on this host."""
    return Response(wire.encode(wire.Workers(_workers(front(request)))), media_type="application/json")


async def _missing(here: Front) -> list[str]:
    header = here.memory.read_header()
    states = [worker.state for worker in _workers(here)]
    said = {
        "the recovery of the previous pool is not committed": header.recovered,
        "the lease is not valid": header.trusted,
        "the pool is stopping": not header.draining,
        "no worker is ready": "idle" in states or "busy" in states,
        f"the application is not loaded: {here.application.missing}": here.application.missing is None,
    }
    wrong = await _wrong_with_database(here)
    return [what for what, fine in said.items() if not fine] + ([wrong] if wrong else [])


async def _wrong_with_database(here: Front) -> str | None:
    try:
        await here.pool.run(migrate.check, here.deadline())
    except SchemaMismatch as error:
        return str(error)
    except StoreError:
        return "the database does not answer"
    return None


def _workers(here: Front) -> list[wire.Worker]:
    seats = enumerate(here.memory.seats, 1)
    return [worker for number, seat in seats if (worker := _worker(number, seat)) is not None]


def _worker(number: int, seat: SeatMemory) -> wire.Worker | None:
    state = worker_state(seat)
    if state is None:
        return None
    told = seat.read_seat()
    if told.seating is Seating.EMPTY:
        # No pid: a 0 would be an invitation to kill the wrong ones. Why the last one ended is what one wants to know.
        since = datetime.fromtimestamp(told.since / 1e9, UTC)
        return wire.Worker(number, None, "starting", None, since, told.exits, told.last_exit or None)
    box = seat.read_box()
    mine = box is not None and box.pid == told.pid
    return wire.Worker(
        slot=number,
        pid=told.pid,
        state=state,
        task=box.task if box is not None and mine else None,
        since=datetime.fromtimestamp((box.since if box is not None and mine else told.since) / 1e9, UTC),
        exits=told.exits,
        last_exit=told.last_exit or None,
    )
