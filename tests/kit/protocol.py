"""PostgreSQL's wire protocol, as far as a proxy must know it: which statement goes by, and when it is answered."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from deadsure.runtime import sql
from pg8000.native import to_statement

#: The product's statements by the text that goes over the wire; transactions go as plain words.
_NAMES = {to_statement(statement.text)[0]: name for name, statement in sql._STATEMENTS.items()}
_WORDS = ("begin", "commit", "rollback")
_SSL_REQUEST = 80877103
_ENDS = b"SQpX"  # of what a client says before it listens: Sync, Query, password, Terminate


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a client says before it waits for an answer. `statement` is the product's name of what it carries out.

    Empty for everything else: the first words, a preparation, a farewell. `handle` is the name under which the
    session had prepared it.
    """

    raw: bytes
    statement: str = ""
    parameters: tuple[bytes, ...] = ()
    answered: bool = True
    handle: bytes = b""


@dataclass(slots=True)
class Answer:
    """What the server answered to one exchange."""

    rows: list[tuple[bytes | None, ...]] = field(default_factory=list)
    error: str = ""


class Frontend:
    """Cuts the bytes of one client into exchanges. `preparations` are repeated on a session that knows nothing yet."""

    def __init__(self) -> None:
        self.startup = b""
        self.application = ""
        self.preparations: dict[bytes, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Exchange]:
        """The exchanges that are whole now."""
        self._rest += data
        while self._rest and (size := self._whole()):
            raw, self._rest = self._rest[:size], self._rest[size:]
            yield self._exchange(raw)

    def _whole(self) -> int:
        """How many bytes the first exchange has; 0 while its end is missing."""
        at = 0
        while len(self._rest) >= at + 5:
            typed = bool(self.startup)
            size = int(typed) + struct.unpack_from("!i", self._rest, at + int(typed))[0]
            kind = self._rest[at : at + 1]
            at += size
            if not typed or kind in _ENDS:
                return at if len(self._rest) >= at else 0
        return 0

    def _exchange(self, raw: bytes) -> Exchange:
        if not self.startup:
            return self._first(raw)
        handle, statement = b"", ""
        parameters: tuple[bytes, ...] = ()
        for kind, body in messages(raw):
            if kind == b"P":
                handle, text = body.split(b"\0")[:2]
                self._names[handle] = _NAMES.get(text.decode(), "unknown")
                self.preparations[handle] = raw
            elif kind == b"B":
                handle, parameters = _bound(body)
                statement = self._names.get(handle, "unknown")
            elif kind == b"Q":
                word = body.rstrip(b"\0").strip().lower().decode(errors="replace")
                statement = word if word in _WORDS else "script"
        return Exchange(raw, statement, parameters, kind in (b"S", b"Q"), handle)

    def _first(self, raw: bytes) -> Exchange:
        if struct.unpack_from("!i", raw, 4)[0] != _SSL_REQUEST:
            self.startup = raw
            words = raw[8:].split(b"\0")
            self.application = dict(zip(words[::2], words[1::2], strict=False)).get(b"application_name", b"").decode()
        return Exchange(raw, answered=False)


class Backend:
    """Counts a server's answers."""

    def __init__(self) -> None:
        self._rest = b""
        self._answer = Answer()

    def feed(self, data: bytes) -> Iterator[Answer]:
        """The answers that are whole now: each ends when the server is ready for the next exchange."""
        self._rest += data
        while len(self._rest) >= 5 and len(self._rest) >= (size := 1 + struct.unpack_from("!i", self._rest, 1)[0]):
            kind, body, self._rest = self._rest[:1], self._rest[5:size], self._rest[size:]
            if kind == b"D":
                self._answer.rows.append(_row(body))
            elif kind == b"E":
                said = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
                self._answer.error = f"{said.get(b'C')} {said.get(b'M')}"
            elif kind == b"Z":
                answer, self._answer = self._answer, Answer()
                yield answer


def messages(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The typed messages in these bytes."""
    at = 0
    while at < len(raw):
        size = struct.unpack_from("!i", raw, at + 1)[0]
        yield raw[at : at + 1], raw[at + 5 : at + 1 + size]
        at += 1 + size


def _bound(body: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Of a Bind: the name of what is carried out, and the parameters that are not null."""
    _, handle, rest = body.split(b"\0", 2)
    formats = struct.unpack_from("!h", rest)[0]
    values = _values(rest, 2 + 2 * formats)
    return handle, tuple(value for value in values if value is not None)


def _row(body: bytes) -> tuple[bytes | None, ...]:
    return tuple(_values(body, 0))


def _values(body: bytes, at: int) -> Iterator[bytes | None]:
    count = struct.unpack_from("!h", body, at)[0]
    at += 2
    for _ in range(count):
        size = struct.unpack_from("!i", body, at)[0]
        at += 4
        yield None if size < 0 else body[at : at + size]
        at += max(size, 0)
