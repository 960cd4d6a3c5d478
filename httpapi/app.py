"""The application: every route on one screen."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from ..runtime.errors import DeadsureError
from . import listing, openapi, probes, problems, scrape, settling, submitting, tasks, wire
from .front import Front
from .guard import Guard
from .leftover import Leftover
from .metered import Metered
from .resource import Operation, routes

KEY = ("Idempotency-Key",)
WAITING = ("Prefer", "If-None-Match")
FILTERS = ("state", "kind", "queue", "limit", "cursor")
TAG = ("ETag",)
STORED = ("Location", "ETag", "Idempotency-Replayed")
SHOWN = ("ETag", "Preference-Applied")
DECIDING = (("If-Match", "Idempotency-Key", "Deadsure-Actor"), TAG, (409, 412, 428, 503))

OPERATIONS = (
    Operation("POST", "/tasks", submitting.create, "submit", 202, wire.Task, wire.NewTask, KEY, STORED, (503,)),
    Operation("GET", "/tasks", listing.list_tasks, "read", 200, wire.Page, None, FILTERS, others=(422, 503)),
    Operation("POST", "/tasks/batch", submitting.create_batch, "submit", 202, wire.Batch, wire.NewBatch, others=(503,)),
    Operation("GET", "/tasks/{id}", tasks.show, "read", 200, wire.Task, None, WAITING, SHOWN, (304, 429, 503)),
    Operation("GET", "/tasks/{id}/events", tasks.events, "read", 200, wire.Events, others=(503,)),
    Operation("POST", "/tasks/{id}/cancel", tasks.cancel, "cancel", 202, wire.Task, headers=TAG, others=(409, 503)),
    Operation(
        "POST", "/tasks/{id}/reconcile", settling.look_up, "operate", 202, wire.Task, headers=TAG, others=(409, 503)
    ),
    Operation(
        "POST", "/tasks/{id}/resolution", settling.resolve, "operate", 200, wire.Task, wire.Resolution, *DECIDING
    ),
    Operation("GET", "/workers", probes.workers, "read", 200, wire.Workers),
    Operation("GET", "/livez", probes.livez, None, 200, wire.Status),
    Operation("GET", "/readyz", probes.readyz, None, 200, wire.Status, others=(503,)),
    Operation("GET", "/metrics", scrape.show, "metrics", 200, None, media_type="text/plain"),
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
    app.state.openapi = openapi.document(OPERATIONS, tokens=bool(front.settings.tokens))
    front.counter.serve(tuple(dict.fromkeys(operation.path for operation in OPERATIONS)))
    return Metered(Leftover(app), front.counter)
