"""GET /metrics: shared memory as text. It asks no database and takes no connection of the pool."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from .front import front


async def show(request: Request) -> Response:
    """This pool's metrics, in Prometheus' text format, or in OpenMetrics where `Accept` asks for it."""
    text, media_type = front(request).exposition.text(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": media_type})
