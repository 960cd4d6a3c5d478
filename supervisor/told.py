"""How a child's events reach the log: as lines in the pipe that also takes what its code prints.

An event is a JSON text sequence (RFC 7464): a record separator, one JSON object, a line feed. So the supervisor can
tell it from what handlers print, and writes both in the one format that was configured.
"""

from __future__ import annotations

import json
import os

from ..runtime import events

#: The event that stands for a line which a child's code has printed. Its fields: `process`, `line`.
PRINTED = "a child printed"
_SEPARATOR = b"\x1e"


def tell(event: str, fields: dict[str, object]) -> None:
    """The listener of a child: to the supervisor, in one write."""
    said = json.dumps({"event": event, **fields}, default=str).encode()
    os.write(2, _SEPARATOR + said + b"\n")


def pass_on(line: bytes, process: str) -> None:
    """A line from this child: its event, told here as ours, or what its code has printed."""
    fields = _event(line)
    if fields is None:
        events.emit(PRINTED, process=process, line=line.decode("utf-8", "backslashreplace"))
    else:
        events.emit(str(fields.pop("event")), **fields | {"process": process})


def _event(line: bytes) -> dict[str, object] | None:
    if not line.startswith(_SEPARATOR):
        return None
    try:
        found = json.loads(line[1:])
    except ValueError:  # a handler prints what it likes
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
