"""Parameters of a statement, in PostgreSQL's text form, before the driver sees them.

A parameter that the driver cannot encode would leave an unread answer in its socket, and every later statement would
return the answer of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
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


def _array(values: Sequence[Value]) -> str:
    if values and values[0] is None and all(value is None for value in values):
        return "{NULL" + ",NULL" * (len(values) - 1) + "}"
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Value) -> str:
    plain = _UNQUOTED.get(type(value))
    if plain is not None:
        return plain(value)
    if value is None:
        return "NULL"
    return '"' + (encode(value) or "").replace("\\", "\\\\").replace('"', '\\"') + '"'


#: In an array these need no quotes.
_UNQUOTED: dict[type, Callable[[Any], str]] = {
    int: str,
    float: str,
    UUID: str,
    datetime: datetime.isoformat,
    bool: lambda value: "t" if value else "f",
}
