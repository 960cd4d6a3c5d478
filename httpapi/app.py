"""The application: every route on one screen."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from ..runtime.errors import DeadsureError
from . import listing, openapi, probes, problems, settling, submitting, tasks, wire
from .front import Front
from .guard import Guard
from .leftover import Leftover
from .resource import Operation, routes

WAITING = ("Prefer", "If-None-Match")
DECIDING = ("If-Match", "Deadsure-Actor")
FILTERS = ("state", "kind", "queue", "limit", "cursor")

OPERATIONS = (
    Operation("POST", "/tasks", submitting.create, "submit", 202, wire.Task, wire.NewTask, ("Idempotency-Key",)),
    Operation("GET", "/tasks", listing.list_tasks, "read", 200, wire.Page, None, FILTERS),
    Operation("POST", "/tasks/batch", submitting.create_batch, "submit", 202, wire.Batch, wire.NewBatch),
    Operation("GET", "/tasks/{id}", tasks.show, "read", 200, wire.Task, None, WAITING),
    Operation("GET", "/tasks/{id}/events", tasks.events, "read", 200, wire.Events),
    Operation("POST", "/tasks/{id}/cancel", tasks.cancel, "cancel", 202, wire.Task),
    Operation("POST", "/tasks/{id}/reconcile", settling.look_up, "operate", 202, wire.Task),
    Operation("POST", "/tasks/{id}/resolution", settling.resolve, "operate", 200, wire.Task, wire.Resolution, DECIDING),
    Operation("GET", "/workers", probes.workers, "read", 200, wire.Workers),
    Operation("GET", "/livez", probes.livez, None, 200, wire.Status),
    Operation("GET", "/readyz", probes.readyz, None, 200, wire.Status),
    Operation("GET", "/openapi.json", openapi.show, None, 200, None),
)


def build(front: Front) -> ASGIApp:
    """The ASGI application on this Front."""
    app = Starlette(
        routes=routes(OPERATIONS),
        middleware=[Middleware(Guard, front.settings)],
        exception_handlers=dict.fromkeys((DeadsureError, HTTPException, Exception), problems.answer),
    )
    # A redirect would be an absolute URL with the scheme this process sees, not the one the client used.
    app.router.redirect_slashes = False
    app.state.front = front
    app.state.openapi = openapi.document(OPERATIONS)
    return Leftover(app)
