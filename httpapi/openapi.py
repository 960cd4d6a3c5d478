"""GET /openapi.json: OpenAPI 3.1, made from the table of routes and the wire types, so that it cannot drift.

It says nothing that is not so: a request that fits is not refused for its form, one that does not fit is refused, and
every answer is one of those listed. What a connection is told before there is a request (400, 431) stands in no
operation, nor does the 405 of a method that a path does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..runtime.payload import MAX_DEPTH
from . import keys, listing, problems, settling, wire
from .resource import Operation

_REF = "#/components/schemas/{name}"
_TEXT = {"type": "string"}

#: Parameters by their name in the table of routes: where they stand, their schema, what they mean.
_PARAMETERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Idempotency-Key": (
        "header",
        _TEXT | {"pattern": keys.HEADER},
        "However often the same is sent under this key, it is done once.",
    ),
    "If-Match": ("header", _TEXT | {"pattern": settling.TAGS}, "The ETag of the version that the decision is about."),
    "Deadsure-Actor": (
        "header",
        _TEXT | {"pattern": settling.ACTOR},
        "On loopback without tokens: who decides, recorded as claimed.",
    ),
    "If-None-Match": ("header", _TEXT, "The ETag of the version that is known already."),
    "Prefer": ("header", _TEXT, "`wait=N`: answer later, up to N seconds (at most 30)."),
    "state": ("query", {"$ref": _REF.format(name="State")}, "Only tasks in this state."),
    "kind": ("query", {"$ref": _REF.format(name="Name")}, "Only tasks of this kind."),
    "queue": ("query", {"$ref": _REF.format(name="Name")}, "Only tasks of this queue."),
    "limit": (
        "query",
        {"type": "integer", "minimum": 1, "maximum": listing.MAX_LIMIT, "default": listing.DEFAULT_LIMIT},
        "At most so many tasks.",
    ),
    "cursor": ("query", _TEXT | {"pattern": listing.CURSOR}, "The `next` of the page before."),
}
_REQUIRED = {"If-Match"}

#: Headers of answers: whether they are always there, and what they mean.
_HEADERS: dict[str, tuple[bool, str]] = {
    "Location": (True, "The task's path."),
    "ETag": (True, "The task's version."),
    "Idempotency-Replayed": (False, "`true` when the key's task was there already."),
    "Preference-Applied": (False, "The wait that was granted, in answer to `Prefer`."),
    "Retry-After": (True, "Seconds."),
    "WWW-Authenticate": (True, "RFC 6750."),
}
_OF_STATUS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}

#: Schemas that are not those of a wire type.
_SCHEMAS: dict[str, Any] = {
    "Name": _TEXT | {"minLength": 1, "maxLength": 200, "pattern": wire.NAME},
    "Json": {
        "description": (
            f"Any JSON that can be stored: no NUL in its texts, lists and objects nest at most {MAX_DEPTH} deep, "
            "numbers within double precision."
        ),
        "pattern": r"^[^\u0000]*$",
        "items": {"$ref": _REF.format(name="Json")},
        "propertyNames": {"pattern": r"^[^\u0000]*$"},
        "additionalProperties": {"$ref": _REF.format(name="Json")},
    },
}
_A_RESULT_ONLY_WITH_SUCCESS = {
    "anyOf": [{"properties": {"state": {"const": "succeeded"}}}, {"properties": {"result": {"type": "null"}}}]
}


async def show(request: Request) -> Response:
    """This document."""
    return Response(request.app.state.openapi, media_type="application/json")


def document(operations: Sequence[Operation], tokens: bool) -> bytes:
    """The whole document as JSON. `tokens`: whether the server asks for them."""
    types = {t for operation in operations for t in (operation.answer, operation.body) if t is not None}
    ordered = sorted(types | {wire.ProblemDetails}, key=lambda t: str(t.__name__))
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    schemas["Resolution"] |= _A_RESULT_ONLY_WITH_SUCCESS
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, tokens)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "deadsure", "version": _version()},
            "paths": paths,
            "components": {
                "schemas": _whole(schemas) | _SCHEMAS,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(operation: Operation, tokens: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.endpoint.__module__.rpartition('.')[2]}_{operation.endpoint.__name__}",
        "summary": (operation.endpoint.__doc__ or "").strip(),
        "parameters": _parameters(operation),
        "responses": {str(operation.status): _success(operation)}
        | {str(status): _other(operation, status) for status in sorted(_others(operation, tokens))},
        "security": [{"token": []}] if tokens and operation.scope is not None else [],
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    return described


def _others(operation: Operation, tokens: bool) -> set[int]:
    """Every status but that of success."""
    found = {400, *operation.others}
    if not tokens:
        found |= {403}  # another site, or a foreign Host
    elif operation.scope is not None:
        found |= {401, 403}
    if "{id}" in operation.path:
        found |= {404}
    if operation.body is not None:
        found |= {408, 413, 415, 422}
    return found


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT | {"format": "uuid"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    others = [
        {"name": name, "in": place, "required": name in _REQUIRED, "schema": schema, "description": meaning}
        for name in operation.parameters
        for place, schema, meaning in [_PARAMETERS[name]]
    ]
    return in_path + others


def _success(operation: Operation) -> dict[str, Any]:
    content = {operation.media_type: _schema(operation.answer)}
    return {"description": "Done.", "headers": _headers(operation.headers), "content": content}


def _other(operation: Operation, status: int) -> dict[str, Any]:
    if status == 304:
        return {"description": "It is known already.", "headers": _headers(operation.headers)}
    schema = {"$ref": _REF.format(name=wire.ProblemDetails.__name__)}
    return {
        "description": f"A problem (RFC 9457): {problems.title(status)}.",
        "headers": _headers(_OF_STATUS.get(status, ())),
        "content": {problems.MEDIA_TYPE: {"schema": schema}},
    }


def _headers(names: Sequence[str]) -> dict[str, Any]:
    return {
        name: {"required": always, "schema": _TEXT, "description": meaning}
        for name in names
        for always, meaning in [_HEADERS[name]]
    }


def _content(type: Any) -> dict[str, Any]:
    return {"application/json": _schema(type)}


def _schema(type: Any) -> dict[str, Any]:
    return {"schema": {} if type is None else {"$ref": _REF.format(name=type.__name__)}}


def _whole(schema: Any) -> Any:
    """Say `integer` where a multiple of 1 is meant: the same, and what generators of clients understand."""
    if isinstance(schema, list):
        return [_whole(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("multipleOf") == 1:
        schema = {name: value for name, value in schema.items() if name != "multipleOf"} | {"type": "integer"}
    return {name: _whole(value) for name, value in schema.items()}


def _version() -> str:
    try:
        return version("deadsure")
    except PackageNotFoundError:
        return "0"
