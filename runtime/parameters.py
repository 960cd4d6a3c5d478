"""Parameters of a statement, in PostgreSQL's text form, before the driver sees them.

A parameter that the driver cannot encode would leave an unread answer in its socket, and every later statement would
return the answer of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from .errors import NotStorable

Value = None | bool | int | float | str | UUID | datetime | Sequence["Value"]


def encode_all(name: str, parameters: dict[str, Value]) -> dict[str, str | None]:
    """All parameters of the statement `name`. Raises NotStorable for a text that does not encode; nothing was sent."""
    try:
        return {key: encode(value) for key, value in parameters.items()}
    except UnicodeEncodeError as error:
        raise NotStorable(f"{name}: a text holds a lone surrogate; nothing was sent") from error


def encode(value: Value) -> str | None:
    """A parameter as PostgreSQL's text form; what the driver gets always encodes to UTF-8."""
    match value:
        case None:
            return None
        case bool():
            return "t" if value else "f"
        case str():
            value.encode("utf-8")
            return value
        case int() | float() | UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case _:
            return _array(value)


def _array(values: Iterable[Value]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Value) -> str:
    match value:
        case None:
            return "NULL"
        case int() | float() | UUID() | datetime():
            return encode(value) or ""
        case _:
            return '"' + (encode(value) or "").replace("\\", "\\\\").replace('"', '\\"') + '"'
