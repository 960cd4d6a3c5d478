"""The log: one line for each event of the runtime, to whatever writes lines.

An event carries no payload and no secret (runtime/events.py asks for that), so a line shows all of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

from ..runtime import events

LEVELS = ("debug", "info", "warning", "error")

#: Events that somebody may have to act on although they carry neither an `error` nor an unclean `exit`.
_WARNINGS = (
    "a finish was refused",
    "a worker did not become ready in time; killing it",
    "stopping at once",
    "the lease is lost; killing the workers and starting anew",
    "the lease was refused",
    "the worker exits",
    "waiting for the previous pool's processes to end",
)
_ERRORS = ("a request hit a bug",)
_CLEAN = "exit code 0"


def subscribe(write: Callable[[str], None], level: str = "info", format: str = "text") -> None:
    """From now on hand one line to `write` for each event of this process that has at least `level`."""
    lowest = LEVELS.index(level)
    line = _json if format == "json" else _text

    def tell(event: str, fields: dict[str, object]) -> None:
        found = level_of(event, fields)
        if LEVELS.index(found) >= lowest:
            write(line(found, event, fields))

    events.subscribe(tell)


def level_of(event: str, fields: dict[str, object]) -> str:
    """How much an event matters, by what it carries; one that carries a `level` says it itself."""
    if fields.get("level") in LEVELS:
        return str(fields["level"])
    if event in _ERRORS:
        return "error"
    unclean = str(fields.get("exit", _CLEAN)) != _CLEAN
    return "warning" if event in _WARNINGS or unclean or "error" in fields else "info"


def _text(level: str, event: str, fields: dict[str, object]) -> str:
    said = "".join(f" {name}={_word(value)}" for name, value in fields.items() if name != "level")
    return f"{_now()} {level} {event}{said}"


def _json(level: str, event: str, fields: dict[str, object]) -> str:
    return json.dumps({**fields, "time": _now(), "level": level, "event": event}, ensure_ascii=False, default=str)


def _word(value: object) -> str:
    """A value as one word: quoted where it has white space or quotes, so that one event is one line."""
    text = str(value)
    plain = text.isprintable() and text and not set(text) & set(" \"'=\\")
    return text if plain else json.dumps(text, ensure_ascii=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
