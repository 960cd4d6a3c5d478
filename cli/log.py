"""The log: one line for each event of the runtime, and for each line that a handler prints, to whatever writes lines.

An event carries no payload and no secret (runtime/events.py asks for that), so a line shows all of its fields. What a
handler prints is passed on as it is, at every level.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import TracebackType

from ..runtime import events
from ..supervisor.told import PRINTED

LEVELS = ("debug", "info", "warning", "error")

#: Events that somebody may have to act on although they carry neither an `error` nor an unclean `exit`.
_WARNINGS = (
    "a finish was refused",
    "a receipt does not prove its intent",
    "a worker did not become ready in time; killing it",
    "log lines were dropped",
    "stopping at once",
    "the lease is lost; killing the workers and starting anew",
    "the lease was refused",
    "the worker exits",
    "waiting for the previous pool's processes to end",
)
BUG = "the supervisor ends by a bug"
_ERRORS = ("a request hit a bug", BUG)
_CLEAN = "exit code 0"
#: Longer texts are cut, in a JSON line: a line then fits into a pipe whole (PIPE_BUF), or not at all.
_LONGEST = 600
#: A printed line of more characters becomes several events.
_PIECE = 600


def subscribe(write: Callable[[str], None], level: str = "info", format: str = "text") -> Log:
    """From now on hand a line to `write` for each event of this process that has at least `level`."""
    log = Log(write, level, format)
    events.subscribe(log.event)
    return log


class Log:
    """Events and plain lines, in one format."""

    def __init__(self, write: Callable[[str], None], level: str, format: str) -> None:
        self._write = write
        self._lowest = LEVELS.index(level)
        self._json = format == "json"

    def event(self, event: str, fields: dict[str, object]) -> None:
        """Write an event, if it matters enough."""
        level = level_of(event, fields)
        if event == PRINTED:
            self._printed(str(fields["process"]), str(fields["line"]))
        elif LEVELS.index(level) >= self._lowest:
            self._write(_json(level, event, fields) if self._json else _text(level, event, fields))

    def say(self, line: str) -> None:
        """Write a line for people, whatever the level: `sentence`, or `sentence: name=value name=value`."""
        if not self._json:
            self._write(line)
            return
        event, _, rest = line.partition(": ")
        words = [word.partition("=") for word in rest.split()]
        if words and all(equals and value for _, equals, value in words):
            self._write(_json("info", event, {name: value for name, _, value in words}))
        else:
            self._write(_json("info", line, {}))

    def complain(self, text: str) -> None:
        """Write what the command says on its way out, or warns of."""
        level = "warning" if text.startswith("warning: ") else "error"
        self._write(_json(level, text, {}) if self._json else text)

    def crash(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Write an exception that nobody has caught (sys.excepthook): an event, with where it came from."""
        places = [f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in traceback.extract_tb(trace)]
        self.event(BUG, {"error": f"{kind.__name__}: {error}", "at": " < ".join(reversed(places))})

    def _printed(self, process: str, line: str) -> None:
        if not self._json:
            self._write(f"{_marked(process)}{line}")
            return
        for piece in _pieces(line):
            self._write(_json("info", PRINTED, {"process": process, "line": piece}))


def dropped(format: str) -> Callable[[int], str]:
    """How to say that lines were dropped, as a line that stands where they would have stood."""
    event = "log lines were dropped"
    if format == "json":
        return lambda lines: _json("warning", event, {"lines": lines})
    return lambda lines: f"({lines} lines were dropped here: nobody read them)"


def level_of(event: str, fields: dict[str, object]) -> str:
    """How much an event matters, by what it carries; one that carries a `level` says it itself."""
    if fields.get("level") in LEVELS:
        return str(fields["level"])
    if event in _ERRORS:
        return "error"
    unclean = str(fields.get("exit", _CLEAN)) != _CLEAN
    return "warning" if event in _WARNINGS or unclean or "error" in fields else "info"


def _text(level: str, event: str, fields: dict[str, object]) -> str:
    shown = {name: value for name, value in fields.items() if name not in ("level", "process")}
    said = "".join(f" {name}={_word(value)}" for name, value in shown.items())
    mark = _marked(str(fields["process"])) if "process" in fields else ""
    return f"{mark}{_now()} {level} {event}{said}"


def _marked(process: str) -> str:
    """The mark of a child's lines: `worker 2 | `."""
    return f"{process.replace('-', ' ')} | "


def _json(level: str, event: str, fields: dict[str, object]) -> str:
    shown = {name: _cut(value) for name, value in fields.items()}
    return json.dumps({"time": _now(), "level": level, "event": event} | shown, ensure_ascii=False, default=str)


def _cut(value: object) -> object:
    text = value if isinstance(value, str) else None
    return value if text is None or len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _pieces(line: str) -> Iterator[str]:
    for start in range(0, max(1, len(line)), _PIECE):
        yield line[start : start + _PIECE]


def _word(value: object) -> str:
    """A value as one word: quoted where it has white space or quotes, so that one event is one line."""
    text = str(value)
    plain = text.isprintable() and text and not set(text) & set(" \"'=\\")
    return text if plain else json.dumps(text, ensure_ascii=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
