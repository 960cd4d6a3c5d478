"""The pieces of what no decent client sends: values, lines, chunks and frames that are wrong in one way each."""

from __future__ import annotations

import random
import re
from typing import Any

Random = random.Random
MISSING = b"01a22c1b-4037-754f-97f2-a463dd9dbbc7"


def _each(text: str, *more: bytes) -> list[bytes]:
    r"""The pieces between bars and line ends, with Python's escapes, and some more; `\e` is nothing."""
    parts = (part.strip() for part in re.split(r"[|\n]", text))
    each = [part.replace(r"\e", "").encode().decode("unicode_escape").encode("latin-1") for part in parts if part]
    return [*each, *more]


PAYLOADS = _each(
    r"""
    NaN | -Infinity | 1e400 | -1e400 | 1e-400 | 1e131073 | 1e-20000 | 0x10 | 01 | 1. | .5 | \e | \x20 | {}{}
    "\\ud800" | "\\udc00\\ud800" | "\\u0000" | {"\\u0000":1} | "\x00" | "\x1f" | "\\x41" | "\\u12" | "\xe2\x80\xae"
    "\xff" | "\xc0\xaf" | "\xed\xa0\x80" | "\xf4\x90\x80\x80" | "\xe2\x82" | \xef\xbb\xbf{} | {"a":1,"a":2}
    [1,] | {,} | {"a"} | [1 2] | // x\n1 | /* */1 | 'a' | nul | None | {"":{"":{"":0}}} | {"__proto__":{"a":1}}
    """,
    *(b"[" * depth + b"]" * depth for depth in (100, 101, 1_000, 20_000)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (100, 101, 20_000)),
    *(b"1" * digits for digits in (309, 4_300, 4_301, 100_000)),
    *(b'"' + b"x" * size + b'"' for size in (1_000_000, 1_048_000, 1_100_000)),
    *(b"[" * 300_000, b"[[],[" * 50_000, b"{" + b",".join(b'"a":%d' % n for n in range(5_000)) + b"}"),
)

LINES = _each(
    r"""
    X | : x | \x20: x | X : x | X: | X\0: x | X: a\0b | X: a\rb | X: a\nb | X: a\r\n b | \x20X: folded | X: \xff\xfe
    \xc3\xa9: x | X: \x7f | X: \x0b | (X): x | X: a\r\n\tb: c | Host: other | HOST: | Connection: close, upgrade, x
    Content-Length: 5\r\nContent-Length: 5 | Content-Length: 5\r\nContent-Length: 6
    """
)

VALUES = _each(
    r"""
    \e | \x20 | * | " | "" | "1" | W/"1" | "1", "2" | \x00 | \xff | wait=30000000000 | wait=-1 | wait=0;wait=1, wait
    http://[ | http://] | null | http://localhost:99999 | [:: | [::1]:x | localhost: | 127.1 | 0x7f.1 | Bearer
    Bearer x | Basic ==== | 100-continue | chunked | application/json; charset=utf-16 | / | gzip | identity
    a, b; q=1 | %0d%0aX: y | , , , ;;; = | close, keep-alive | upgrade | trailers
    """,
    *(b"a" * 255, b"a" * 256, b"a" * 9_000, b"wait=" + b"9" * 5_000),
)

LENGTHS = _each(
    r"""
    \e | -1 | +5 | 0x10 | 1e3 | 5, 5 | 5, 6 | 5; | 5.0 | NaN | \xb2 | 00005 | 0 | 28 | 29 | 1048577
    18446744073709551616
    """,
    *(b"9" * 30, b"9" * 5_000),
)

CODINGS = _each(
    r"""
    chunked | Chunked | \tchunked | chunked, chunked | gzip, chunked | chunked, gzip | identity | xchunked
    chunked;a=b | "chunked" | chunked\r\nTransfer-Encoding: identity | \e | \x0bchunked
    """
)

CHUNKS = _each(r"""2\r\n{}\r\n | 1\r\n{\r\n | 1d\r\n{"kind":"plain","payload":{}}\r\n | 0\r\n\r\n""")
BROKEN_CHUNKS = _each(
    r"""
    \r\n | x\r\n | -1\r\n | +2\r\n{}\r\n | 0x2\r\n{}\r\n | 2 \r\n{}\r\n | 2\n{}\n | 2\r\n{} | 2\r\n{}}\r\n
    2;a=\xff\0\r\n{}\r\n | 0\r\nX: y\r\n\r\n | 0\r\nContent-Length: 5\r\n\r\n | 0\r\n\0\r\n\r\n
    """,
    *(b"f" * 16 + b"\r\n", b"f" * 400 + b"\r\n", b"2;" + b"a" * 20_000 + b"\r\n{}\r\n", b"0" * 900),
    *(b"0\r\n" + b"X: y\r\n" * 5_000 + b"\r\n", b"1\r\n \r\n" * 3_000),
)

TARGETS = _each(
    r"""
    http://localhost/livez | HTTP://LOCALHOST:1/tasks?limit=1 | https://localhost | http://localhost?x | http:///tasks
    http://evil.example/tasks | http:// | http://[/tasks | http://a@localhost/tasks | ftp://x/y | * | localhost:80
    //livez | / | \e | ? | # | /tasks#a | /tasks? | /tasks/? | /livez/../tasks | /%00 | /% | /%zz | /%ff%fe
    /%2e%2e/tasks | /tasks%2fbatch | /\\tasks | /\xff | /ta sks
    """,
    *(b"/tasks/" + MISSING + end for end in (b"\xc3\xa9", b"%0a", b"/" * 5_000)),
)

QUERIES = _each(
    r"""
    \e | queued | QUEUED | running%00 | 1 | 0 | -1 | 1.0 | 1e2 | 501 | %31 | \xd9\xa1 | %ff | %u0031 | % | + | %20a
    a%0ab | %E2%80%AE | { | ' | " | --
    """,
    *(b"f" * 32, b"F" * 32, MISSING, b"9" * 5_000),
)


def noise(source: Random, most: int) -> bytes:
    return source.randbytes(source.randint(0, most))


def value(source: Random, depth: int) -> Any:
    """Any JSON value, small."""
    if depth > 0 and source.random() < 0.4:
        items = [value(source, depth - 1) for _ in range(source.randint(0, 4))]
        return items if source.random() < 0.5 else {str(n) * 3: item for n, item in enumerate(items)}
    return source.choice((None, True, 0, -1, 2**31, 2**63, 2**64, 1.5, 1e308, "", "\0", "\ud800", "é" * 200, "now"))


def changed(source: Random, text: bytes) -> bytes:
    """The text with a few bytes flipped, put in, taken out or repeated."""
    body = bytearray(text)
    for _ in range(source.randint(1, 8)):
        at = source.randrange(len(body))
        match source.randrange(4):
            case 0:
                body[at] ^= 1 << source.randrange(8)
            case 1:
                body.insert(at, source.randrange(256))
            case 2 if len(body) > 1:
                del body[at]
            case _:
                body[at:at] = body[at : at + 9] * source.choice((1, 2, 50))
    return bytes(body)


def frame(source: Random) -> bytes:
    """A frame of HTTP/2, mostly broken."""
    payload = noise(source, 60)
    length = source.choice((len(payload), len(payload), 0, 2**14 + 1, 2**24 - 1))
    kind, flags, stream = source.randrange(12), source.randrange(256), source.choice((0, 1, 2, 3, 2**31 - 1, 2**32 - 1))
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
