"""What no decent client sends: requests made wrong in many ways, each from one number, so that it can be made again."""

from __future__ import annotations

import json
from collections.abc import Callable

from .hostile_parts import (
    BROKEN_CHUNKS,
    CHUNKS,
    CODINGS,
    LENGTHS,
    LINES,
    MISSING,
    PAYLOADS,
    QUERIES,
    TARGETS,
    VALUES,
    Random,
    changed,
    frame,
    noise,
    value,
)

#: Comes after whatever was sent, so that a connection that is still in order ends.
LAST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
TASK = b'{"kind":"plain","payload":{}}'
IS_JSON = b"Content-Type: application/json"


def request(seed: int, number: int) -> tuple[str, bytes]:
    """The request of this number: what is wrong with it, and its bytes."""
    source = Random(f"{seed}:{number}")
    make = source.choice(MAKERS)
    return make.__name__, make(source)


def head(method: bytes, target: bytes, *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([b" ".join((method, target, version)), b"Host: localhost", *lines, b"", b""])


def post(body: bytes, *lines: bytes, path: bytes = b"/tasks") -> bytes:
    return head(b"POST", path, IS_JSON, b"Content-Length: %d" % len(body), *lines) + body


def _chunked(source: Random, chunks: list[bytes], *lines: bytes) -> bytes:
    body = b"".join(source.choice(chunks) for _ in range(source.randint(1, 6)))
    return head(b"POST", b"/tasks", IS_JSON, *lines) + body


# --- bodies


def a_payload_that_is_none(source: Random) -> bytes:
    return post(b'{"kind":"plain","payload":' + source.choice(PAYLOADS) + b"}")


def a_body_with_bytes_changed(source: Random) -> bytes:
    path = source.choice((b"/tasks", b"/tasks/batch", b"/tasks/" + MISSING + b"/resolution"))
    task = {"kind": "plain", "payload": value(source, 4), "priority": source.randrange(9)}
    return post(changed(source, json.dumps(task).encode()), b'If-Match: "1"', path=path)


def fields_that_nobody_knows(source: Random) -> bytes:
    names = ["kind", "payload", "queue", "priority", "run_at", "max_attempts", "timeout", "\0", "é" * 300, "", "tasks"]
    pairs = [f"{json.dumps(source.choice(names))}:{json.dumps(value(source, 3))}" for _ in range(source.randint(0, 30))]
    return post(("{" + ",".join(pairs) + "}").encode())


def a_batch_of_anything(source: Random) -> bytes:
    tasks = [{"kind": "plain", "payload": value(source, 2), "idempotency_key": value(source, 1)} for _ in range(9)]
    chosen = source.choice((tasks, tasks[:1] * 1001, [], value(source, 3)))
    return post(json.dumps({"tasks": chosen}).encode(), path=b"/tasks/batch")


def another_encoding(source: Random) -> bytes:
    encoding = source.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp1252", "utf-7", "cp500"))
    return post('{"kind":"plain","payload":"é"}'.encode(encoding))


# --- headers


def a_header_line_that_is_none(source: Random) -> bytes:
    return head(b"GET", b"/tasks", source.choice(LINES))


def a_header_of_ours_with_anything(source: Random) -> bytes:
    ours = (b"Idempotency-Key", b"If-Match", b"If-None-Match", b"Prefer", b"Deadsure-Actor", b"Origin", b"Host")
    theirs = (b"Authorization", b"Content-Type", b"Content-Encoding", b"Expect", b"Cookie", b"Connection", b"TE")
    line = source.choice(ours + theirs) + b": " + source.choice((*VALUES, noise(source, 60)))
    lines = [line] * source.choice((1, 1, 1, 2, 5))
    target = source.choice((b"/tasks", b"/tasks/" + MISSING, b"/tasks/" + MISSING + b"/resolution"))
    body = source.choice((TASK, b'{"state":"failed","evidence":"e"}'))
    return source.choice((head(b"GET", target, *lines), post(body, *lines, path=target)))


def a_flood_of_headers(source: Random) -> bytes:
    number, size = source.choice((90, 101, 500, 3000)), source.choice((0, 1, 50))
    return head(b"GET", b"/tasks", *(b"X-%d: %s" % (n, b"y" * size) for n in range(number)))


def a_very_long_line(source: Random) -> bytes:
    long = b"a" * source.choice((8_000, 16_385, 65_535, 65_537, 300_000))
    lines = (head(b"GET", b"/tasks/" + long), head(b"GET", b"/tasks?kind=" + long), head(long, b"/tasks"))
    return source.choice((*lines, head(b"GET", b"/tasks", b"X: " + long), head(b"GET", b"/tasks", long + b": x")))


# --- framing


def a_length_that_is_none(source: Random) -> bytes:
    lines = [b"Content-Length: " + source.choice(LENGTHS) for _ in range(source.choice((1, 1, 2)))]
    return head(b"POST", b"/tasks", IS_JSON, *lines) + TASK


def both_framings(source: Random) -> bytes:
    lines = [b"Content-Length: " + source.choice(LENGTHS), b"Transfer-Encoding: " + source.choice(CODINGS)]
    source.shuffle(lines)
    return _chunked(source, CHUNKS, *lines)


def a_transfer_coding_that_nobody_knows(source: Random) -> bytes:
    return _chunked(source, CHUNKS, b"Transfer-Encoding: " + source.choice(CODINGS))


def chunks_that_are_broken(source: Random) -> bytes:
    return _chunked(source, CHUNKS + BROKEN_CHUNKS, b"Transfer-Encoding: chunked")


# --- request lines


def a_method_that_nobody_knows(source: Random) -> bytes:
    methods = (b"get", b"BREW", b"PRI", b"CONNECT", b"TRACE", b"OPTIONS", b"DELETE", b"G" * 5000, b"G\0T", b"(", b"")
    return head(source.choice(methods), source.choice((*TARGETS, b"/tasks")))


def a_target_of_another_form(source: Random) -> bytes:
    return head(source.choice((b"GET", b"POST", b"OPTIONS")), source.choice(TARGETS))


def a_path_of_anything(source: Random) -> bytes:
    known = (b"tasks", b"..", b"", b"%00", b"%2e%2e", b"%ff", MISSING, b"cancel", b"events", b"reconcile", b"batch")
    steps = [source.choice((*known, noise(source, 9).hex().encode())) for _ in range(source.randint(1, 6))]
    return head(source.choice((b"GET", b"POST")), b"/" + b"/".join(steps))


def a_query_of_anything(source: Random) -> bytes:
    names = (b"state", b"kind", b"queue", b"limit", b"cursor", b"x", b"")
    pairs = [source.choice(names) + b"=" + source.choice(QUERIES) for _ in range(source.choice((1, 2, 3, 300)))]
    return head(b"GET", b"/tasks?" + source.choice((b"&", b";", b"&&")).join(pairs))


def another_version(source: Random) -> bytes:
    known = (b"HTTP/0.9", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2", b"HTTP/2.0", b"HTTP/9.9", b"http/1.1", b"HTTP/1.10", b"")
    return head(b"GET", b"/livez", version=source.choice(known))


def a_request_line_that_is_none(source: Random) -> bytes:
    wrong = (b"GET /livez\r\n\r\n", b"GET\r\n\r\n", b"\r\n" * 3000, b"GET  /livez  HTTP/1.1\r\n\r\n", b" " + LAST)
    spelled = (LAST.replace(b"\r\n", b"\n"), LAST.replace(b" ", b"\t"), LAST.replace(b"\r", b"\r\r"))
    return source.choice(wrong + spelled)


# --- other protocols


def the_preface_of_http_2(source: Random) -> bytes:
    frames = b"".join(frame(source) for _ in range(source.randint(0, 20)))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + source.choice((b"", b"\0\0\0\4\0\0\0\0\0")) + frames


def an_upgrade(source: Random) -> bytes:
    told = source.choice((b"AAMAAABkAAQAAP__", b"%%%", b"A", b""))
    http_2 = (b"Upgrade: h2c", b"HTTP2-Settings: " + told)
    websocket = (b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: " + told)
    lines = source.choice((http_2, websocket, (b"Upgrade: TLS/1.2, websocket",)))
    asked = head(b"GET", b"/livez", b"Connection: Upgrade, HTTP2-Settings", *lines)
    return asked + source.choice((b"", frame(source), noise(source, 200)))


def noise_and_nothing_else(source: Random) -> bytes:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(source, 500)
    return source.choice((noise(source, 5000), hello, b"SSH-2.0-OpenSSH_9.9\r\n", b"\0" * 3000, b"{}", b""))


def several_at_once(source: Random) -> bytes:
    makers = (a_payload_that_is_none, a_query_of_anything, a_path_of_anything, an_upgrade, both_framings)
    made = [post(TASK), *(source.choice(makers)(source) for _ in range(source.randint(1, 5))), post(TASK)]
    source.shuffle(made)
    return b"".join(made)


MAKERS: tuple[Callable[[Random], bytes], ...] = (
    a_payload_that_is_none,
    a_body_with_bytes_changed,
    fields_that_nobody_knows,
    a_batch_of_anything,
    another_encoding,
    a_header_line_that_is_none,
    a_header_of_ours_with_anything,
    a_flood_of_headers,
    a_very_long_line,
    a_length_that_is_none,
    both_framings,
    a_transfer_coding_that_nobody_knows,
    chunks_that_are_broken,
    a_method_that_nobody_knows,
    a_target_of_another_form,
    a_path_of_anything,
    a_query_of_anything,
    another_version,
    a_request_line_that_is_none,
    the_preface_of_http_2,
    an_upgrade,
    noise_and_nothing_else,
    several_at_once,
)
