"""GET /openapi.json: OpenAPI 3.1, made from the table of routes and the wire types, so that it cannot drift."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from . import problems, wire
from .resource import Operation

_REF = "#/components/schemas/{name}"

#: Parameters by their name in the table of routes: where they stand, their schema, what they mean.
_PARAMETERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Idempotency-Key": ("header", {"type": "string"}, "Store the task once, however often it is sent under this key."),
    "If-Match": ("header", {"type": "string"}, "The ETag of the version that the decision is about; required."),
    "Deadsure-Actor": ("header", {"type": "string"}, "On loopback without tokens: who decides, recorded as claimed."),
    "If-None-Match": ("header", {"type": "string"}, "The ETag of the version that is known already."),
    "Prefer": ("header", {"type": "string"}, "`wait=N`: answer later, up to N seconds (at most 30)."),
    "state": ("query", {"$ref": _REF.format(name="State")}, "Only tasks in this state."),
    "kind": ("query", {"type": "string"}, "Only tasks of this kind."),
    "queue": ("query", {"type": "string"}, "Only tasks of this queue."),
    "limit": ("query", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}, "At most so many tasks."),
    "cursor": ("query", {"type": "string"}, "The `next` of the page before."),
}


async def show(request: Request) -> Response:
    """This document."""
    return Response(request.app.state.openapi, media_type="application/json")


def document(operations: Sequence[Operation]) -> bytes:
    """The whole document as JSON."""
    types = {t for operation in operations for t in (operation.answer, operation.body) if t is not None}
    ordered = sorted(types | {wire.ProblemDetails}, key=lambda t: str(t.__name__))
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "deadsure", "version": _version()},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.endpoint.__module__.rpartition('.')[2]}_{operation.endpoint.__name__}",
        "summary": (operation.endpoint.__doc__ or "").strip(),
        "parameters": _parameters(operation),
        "responses": {
            str(operation.status): {"description": "Done.", "content": _content(operation.answer)},
            "default": {"description": "A problem (RFC 9457).", "content": _problem()},
        },
        # Where no tokens are configured (loopback only) none is asked for.
        "security": [] if operation.scope is None else [{"token": []}, {}],
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    others = [
        {"name": name, "in": place, "schema": schema, "description": meaning}
        for name in operation.parameters
        for place, schema, meaning in [_PARAMETERS[name]]
    ]
    return in_path + others


def _content(type: Any) -> dict[str, Any]:
    schema = {} if type is None else {"$ref": _REF.format(name=type.__name__)}
    return {"application/json": {"schema": schema}}


def _problem() -> dict[str, Any]:
    return {problems.MEDIA_TYPE: {"schema": {"$ref": _REF.format(name=wire.ProblemDetails.__name__)}}}


def _version() -> str:
    try:
        return version("deadsure")
    except PackageNotFoundError:
        return "0"
