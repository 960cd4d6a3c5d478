"""JSON that can be stored and read back: what both jsonb and a worker's `json.loads` take, without surprises."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from .errors import NotStorable

#: How deep lists and objects may nest. PostgreSQL and Python each give up somewhere past it.
MAX_DEPTH = 100

_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")


def check(text: bytes, where: str = "payload") -> Any:
    """The value of this JSON text. Raises NotStorable, which names the place of what cannot be stored."""
    if too_deep(text):
        raise NotStorable(f"{where}: lists and objects nest deeper than {MAX_DEPTH}; nothing was stored")
    try:
        value = msgspec.json.decode(text)
    except msgspec.ValidationError as error:
        raise NotStorable(f"{where}: {error}; nothing was stored") from None
    except msgspec.DecodeError as error:
        raise NotStorable(f"{where}: this is not JSON: {flaw(error, text)}; nothing was stored") from None
    if b"\\u0000" in text:
        _refuse_nul(value, where)
    return value


def flaw(error: msgspec.DecodeError, text: bytes) -> str:
    """What is wrong with a text that is no JSON. The decoder calls half a surrogate pair truncated, before a quote."""
    said = str(error)
    return "half of a UTF-16 surrogate pair" if "truncated" in said and _HALF_A_PAIR.search(text) else said


def too_deep(text: bytes) -> bool:
    """Whether lists and objects in this JSON text nest deeper than MAX_DEPTH."""
    return _brackets(text) > MAX_DEPTH and _deepest(text) > MAX_DEPTH


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _deepest(text: bytes) -> int:
    """The depth of nesting; brackets inside of strings do not count."""
    depth = deepest = 0
    quoted = escaped = False
    for byte in text:
        if quoted:
            quoted, escaped = escaped or byte != 0x22, not escaped and byte == 0x5C
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _refuse_nul(value: Any, where: str) -> None:
    match value:
        case str() if "\0" in value:
            raise NotStorable(f"{where}: a text holds the character NUL (\\u0000); nothing was stored")
        case list():
            for number, element in enumerate(value):
                _refuse_nul(element, f"{where}[{number}]")
        case dict():
            for name, element in value.items():
                _refuse_nul(name, f"{where}: the name of a member")
                _refuse_nul(element, f"{where}.{name}")
