"""pg8000's connection as the hot path needs it: one packet each way for a prepared statement, and less work per value.

pg8000 sends a Flush behind Bind and another behind Execute. The server then answers in three packets, and each of them
wakes this process. Here Bind, Execute and Sync leave in one write and the answer comes in one piece.

This uses names of pg8000 that it does not promise to keep. Its version is held below the next minor one, and
tests/test_driver.py compares what is sent with what pg8000 itself would send.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pg8000 import core, native
from pg8000.converters import string_array_in, timestamptz_in

_TIMESTAMPTZ = 1184
_TEXT_ARRAY = 1009


class Driver(native.Connection):  # type: ignore[misc]  # pg8000 has no types
    """A session of pg8000. Not for several threads."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.register_in_adapter(_TIMESTAMPTZ, read_timestamptz)
        self.register_in_adapter(_TEXT_ARRAY, read_text_array)

    def execute_named(
        self, name: bytes, parameters: Sequence[str | None], columns: Any, readers: Any, statement: str
    ) -> Any:
        """Bind, execute and sync a prepared statement. Raises what pg8000 raises."""
        context = core.Context(statement, columns=columns, input_funcs=readers)
        core._write(self._sock, bind(name, parameters, self._client_encoding) + core.EXECUTE_MSG + core.SYNC_MSG)
        core._flush(self._sock)
        self.handle_messages(context)
        return context

    def handle_NOTIFICATION_RESPONSE(self, data: bytes, context: object) -> None:  # noqa: N802
        """As pg8000's own, which raises at a letter that is not ASCII: whoever may connect may send one."""
        channel, payload = data[4:-1].split(b"\0", 1)
        words = (text.decode("ascii", "replace") for text in (channel, payload))
        self.notifications.append((core.i_unpack(data)[0], *words))


def bind(name: bytes, parameters: Sequence[str | None], encoding: str) -> bytes:
    """The Bind message for the statement `name` (it ends with NUL), with all parameters and the answer as text."""
    body = bytearray(b"\0" + name + core.H_pack(0) + core.H_pack(len(parameters)))
    for value in parameters:
        if value is None:
            body += core.i_pack(-1)
        else:
            raw = value.encode(encoding)
            body += core.i_pack(len(raw)) + raw
    body += core.H_pack(0)
    return bytes(core.BIND + core.i_pack(len(body) + 4) + body)


def read_timestamptz(text: str) -> Any:
    """A point of time. pg8000 reads it by a pattern, which takes ten times as long; it still reads what is beyond
    Python's years.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return timestamptz_in(text)


def read_text_array(text: str) -> Any:
    """A list of texts. pg8000 reads it letter by letter; that is needed only where something is quoted or nested."""
    if '"' in text or "\\" in text or text.find("{", 1) >= 0:
        return string_array_in(text)
    return [None if word == "NULL" else word for word in text[1:-1].split(",")] if text != "{}" else []
