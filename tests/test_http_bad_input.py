"""What no client should send is answered with 4xx, stores nothing, and leaves the server as it was."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from kit.api import Api, fresh_store, read, running
from kit.pool import Answer
from kit.store import Store


@pytest.fixture(scope="module")
def store(server: EmbeddedPostgres) -> Iterator[Store]:
    """One database for all tests of this file; each begins without tasks."""
    with fresh_store(server) as opened:
        yield opened


@pytest.fixture(scope="module")
def api(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One api child for all tests of this file."""
    with running(store.settings, tmp_path_factory.mktemp("api")) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_tasks(store: Store) -> None:
    store.query("truncate deadsure.tasks, deadsure.ready, deadsure.scheduled, deadsure.unknowns, deadsure.events")


def with_payload(payload: bytes) -> bytes:
    return b'{"kind":"plain","payload":' + payload + b"}"


BAD_JSON = {
    "nested 20,000 deep": b"[" * 20000 + b"]" * 20000,
    "nested 7,000 deep": b"[" * 7000 + b"]" * 7000,
    "nested 101 deep": b"[" * 101 + b"]" * 101,
    "a number of 4,301 digits": b"1" * 4301,
    "NaN": b"NaN",
    "1e400": b"1e400",
    "1e131073": b"1e131073",
    "1e-20000": b"1e-20000",
    "a lone surrogate": b'"\\ud800"',
    "NUL": b'{"a":"x\\u0000y"}',
    "NUL in a name": b'{"a\\u0000":1}',
    "not UTF-8": b'"\xff"',
    "cut short": b'"abc',
    "a trailing comma": b"[1,]",
}

BAD_BODIES = {
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf" + with_payload(b"{}"),
    "null": b"null",
    "a list": b"[]",
    "deep by itself": b"[" * 20000,
    "no kind": b'{"payload":{}}',
    "no payload": b'{"kind":"plain"}',
    "an unknown field": b'{"kind":"plain","payload":{},"retries":3}',
}


@pytest.mark.parametrize(
    "body", [*map(with_payload, BAD_JSON.values()), *BAD_BODIES.values()], ids=[*BAD_JSON, *BAD_BODIES]
)
def test_a_bad_body_is_refused_and_the_connection_goes_on(api: Api, store: Store, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    connection.request("POST", "/tasks", body, {"Content-Type": "application/json"})
    assert read(connection.getresponse()).status in (400, 413, 422)
    connection.request("POST", "/tasks", with_payload(b"{}"), {"Content-Type": "application/json"})
    assert read(connection.getresponse()).status == 202
    connection.close()
    assert len(store.query("select id from deadsure.tasks")) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", 3),
        ("kind", ""),
        ("kind", "x" * 201),
        ("kind", "pl\0ain"),
        ("queue", ""),
        ("queue", " default"),
        ("queue", "a\nb"),
        ("priority", 2**31),
        ("priority", 1.5),
        ("priority", "1"),
        ("max_attempts", 0),
        ("max_attempts", 2**40),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", 1e12),
        ("run_at", 0),
        ("run_at", "2026-11-30T10:00:00"),
        ("run_at", "2026-11-30 10:00:00Z"),
        ("run_at", "2016-12-31T23:59:60Z"),
        ("run_at", "2026-02-29T00:00:00Z"),
        ("run_at", "2026-01-01T24:00:00Z"),
        ("run_at", "infinity"),
        ("run_at", "now"),
        ("run_at", "12026-01-01T00:00:00Z"),
        ("run_at", "0044-03-15T00:00:00Z BC"),
        ("run_at", "0001-01-01T00:00:00+14:00"),
        ("run_at", "0001-01-01T00:16:25.0+05:06"),
        ("run_at", "0001-06-01T00:00:00-01:00"),
        ("run_at", "0000-01-01T00:00:00Z"),
        ("run_at", "9999-12-31T23:59:59-12:00"),
        ("run_at", "2026-01-01T00:00:00+25:00"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(api: Api, store: Store, field: str, value: object) -> None:
    answer = api.ask("POST", "/tasks", {"kind": "plain", "payload": {}, field: value})
    assert answer.status == 422
    assert f"`$.{field}`" in answer.body["detail"]
    assert not store.query("select id from deadsure.tasks")


def test_the_place_of_a_nul_is_named(api: Api) -> None:
    answer = api.ask("POST", "/tasks", {"kind": "plain", "payload": {"a": [1, {"b": "x\0y"}]}})
    assert (answer.status, answer.body["type"]) == (400, "urn:deadsure:problem:malformed-json")
    assert "$.payload.a[1].b" in answer.body["detail"]


@pytest.mark.parametrize("what", sorted(BAD_JSON))
def test_a_payload_that_is_no_json_or_cannot_be_kept_is_400(api: Api, what: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    connection.request("POST", "/tasks", with_payload(BAD_JSON[what]), {"Content-Type": "application/json"})
    answer = read(connection.getresponse())
    connection.close()
    # A number that is JSON, but that PostgreSQL's numeric cannot hold, is a valid request that is refused.
    assert answer.status == (422 if what == "1e-20000" else 400)


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("payload", rb'{"a": "\ud800"}', "half of a UTF-16 surrogate pair"),
        ("queue", rb'"\ud800"', "half of a UTF-16 surrogate pair"),
        ("max_attempts", b"0", "Expected a number >= 1 - at `$.max_attempts`"),
        ("max_attempts", b"1.5", "Expected a whole number - at `$.max_attempts`"),
        ("priority", b'"high"', "Expected a number or null, got a string - at `$.priority`"),
        ("timeout", b"0", "Expected a number > 0 - at `$.timeout`"),
        ("float", b"0", "unknown field `float`"),
        ("1.0", b"0", "unknown field `1.0`"),
    ],
)
def test_a_refusal_speaks_of_json(api: Api, field: str, text: bytes, said: str) -> None:
    fields = {"kind": b'"plain"', "payload": b"{}", field: text}
    body = b"{" + b", ".join(b'"' + name.encode() + b'": ' + value for name, value in fields.items()) + b"}"
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    connection.request("POST", "/tasks", body, {"Content-Type": "application/json"})
    answer = read(connection.getresponse())
    connection.close()
    assert said in answer.body["detail"]


@pytest.mark.parametrize("length", ["announced", "chunked"])
def test_a_body_over_the_limit_is_refused_with_a_problem(new_api: Callable[..., Api], length: str) -> None:
    api = new_api(max_body=1000)
    body = b" " * 50_000
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    chunks = iter([body[:25_000], body[25_000:]])
    connection.request(
        "POST", "/tasks", body if length == "announced" else chunks, {"Content-Type": "application/json"}
    )
    assert read(connection.getresponse()).status == 413
    connection.request("GET", "/livez")
    assert read(connection.getresponse()).status == 200
    connection.close()


def test_a_huge_body_is_refused_and_its_connection_closed(new_api: Callable[..., Api]) -> None:
    api = new_api(max_body=1000)
    with api.connect() as connection:
        connection.sendall(head("POST", "/tasks", "Content-Type: application/json", f"Content-Length: {2**40}"))
        answer = read_from(connection)
        assert answer.status == 413
        assert answer.headers["Connection"] == "close"
        assert until_closed(connection)


@pytest.mark.parametrize("sent", ["nothing", "a byte now and then", "a chunk"])
def test_a_body_that_does_not_come_is_given_up(new_api: Callable[..., Api], sent: str) -> None:
    api = new_api(body_timeout=0.5)
    framing = "Transfer-Encoding: chunked" if sent == "a chunk" else "Content-Length: 10"
    with api.connect() as connection:
        connection.sendall(head("POST", "/tasks", "Content-Type: application/json", framing))
        if sent == "a chunk":
            connection.sendall(b"1\r\n{\r\n")
        if sent == "a byte now and then":
            connection.sendall(b"{")
        assert read_from(connection).status == 408
        assert until_closed(connection)


def test_silent_bodies_take_nothing_from_the_others(api: Api) -> None:
    silent = [api.connect() for _ in range(300)]
    for connection in silent:
        connection.sendall(head("POST", "/tasks", "Content-Type: application/json", "Content-Length: 10"))
    for _ in range(5):
        began = time.monotonic()
        api.submit()
        assert time.monotonic() - began < 5
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", None])
def test_a_body_that_is_not_json_is_refused(api: Api, media_type: str | None) -> None:
    with api.connect() as connection:
        lines = [] if media_type is None else [f"Content-Type: {media_type}"]
        connection.sendall(head("POST", "/tasks", *lines, "Content-Length: 2") + b"{}")
        assert read_from(connection).status == 415


def test_json_with_a_parameter_is_json(api: Api) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert api.ask("POST", "/tasks", {"kind": "plain", "payload": {}}, headers).status == 202


def test_an_encoded_body_is_refused(api: Api) -> None:
    assert api.ask("POST", "/tasks", b"\x1f\x8b", {"Content-Encoding": "gzip"}).status == 415


def test_two_lengths_are_refused_and_the_connection_closed(api: Api, store: Store) -> None:
    smuggled = b"0\r\n\r\nPOST /tasks HTTP/1.1\r\nHost: localhost\r\n"
    with api.connect() as connection:
        framing = ("Content-Length: 4", "Transfer-Encoding: chunked")
        connection.sendall(head("POST", "/tasks", "Content-Type: application/json", *framing) + smuggled)
        assert read_from(connection).status == 400
        assert until_closed(connection)
    assert not store.query("select id from deadsure.tasks")


@pytest.mark.parametrize(
    ("number", "status"),
    [(3, 202), (7.0, 202), (-0.0, 202), (2**31 - 1, 202), (-(2**31), 202), (3.5, 422), (1e300, 422)],
)
def test_a_whole_number_is_one_however_it_is_spelt(api: Api, number: float, status: int) -> None:
    answer = api.ask("POST", "/tasks", {"kind": "plain", "payload": {}, "priority": number})
    assert answer.status == status
    assert status != 202 or (answer.body["priority"], type(answer.body["priority"])) == (number, int)


# --- what is no request, or none of HTTP/1.1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
    ],
    ids=["no host", "no version", "no length", "no header", "no coding", "HTTP/2", "the preface of HTTP/2", "TLS"],
)
def test_what_is_not_http_1_is_refused_with_a_problem_and_the_connection_closed(api: Api, sent: bytes) -> None:
    with api.connect() as connection:
        connection.sendall(sent)
        answer = read_from(connection)
        assert (answer.status, answer.body["type"]) == (400, "urn:deadsure:problem:malformed-request")
        assert until_closed(connection)


@pytest.mark.parametrize("to", ["h2c", "websocket", "TLS/1.2"])
def test_an_upgrade_is_not_followed_and_the_request_answered(api: Api, to: str) -> None:
    told = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": to, "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    told |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    answer = api.ask("GET", "/livez", headers=told)
    assert (answer.status, answer.body) == (200, {"status": "live"})


@pytest.mark.parametrize(
    ("number", "size", "status"),
    [(1, 16_000, 200), (1, 16_400, 431), (1, 300_000, 431), (90, 9, 200), (101, 9, 431), (9_000, 9, 431)],
)
def test_headers_are_limited_in_number_and_size(api: Api, number: int, size: int, status: int) -> None:
    with api.connect() as connection:
        connection.sendall(head("GET", "/livez", *["X: " + "a" * size] * number))
        answer = read_from(connection)
        assert answer.status == status
        assert status == 200 or answer.body["type"] == "urn:deadsure:problem:headers-too-large"


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/livez", 200),
        ("HTTP://127.0.0.1:1/tasks?limit=1", 200),
        ("http://localhost", 404),
        ("http://evil.example/livez", 403),
        ("http://[/livez", 403),
        ("*", 404),
        ("localhost:443", 404),
    ],
)
def test_of_a_target_that_is_a_url_the_authority_counts(api: Api, target: str, status: int) -> None:
    with api.connect() as connection:
        connection.sendall(head("GET", target))
        assert read_from(connection).status == status


@pytest.mark.parametrize("origin", ["http://[", "http://]:1", "//[::1", "\xff"])
def test_an_origin_that_is_no_url_is_another_site(api: Api, origin: str) -> None:
    assert api.ask("GET", "/livez", headers={"Origin": origin}).status == 403


@pytest.mark.parametrize(
    ("tag", "status"),
    [("5", 400), ('"', 400), ("", 400), ("*", 412), ('"5"', 412), ('W/"1"', 412), ('"1", "2"', 412), ('"x"', 412)],
)
def test_if_match_is_a_tag_and_must_be_the_present_one(api: Api, store: Store, tag: str, status: int) -> None:
    path = f"/tasks/{api.submit()['id']}/resolution"
    answer = api.ask("POST", path, {"state": "failed", "evidence": "e"}, {"If-Match": tag})
    assert answer.status == status
    assert not store.query("select 1 as one from deadsure.decisions")


@pytest.mark.parametrize("evidence", ["", " ", "\t\n", "\u00a0", "\x1f"])
def test_evidence_must_say_something(api: Api, evidence: str) -> None:
    path = f"/tasks/{api.submit()['id']}/resolution"
    assert api.ask("POST", path, {"state": "failed", "evidence": evidence}, {"If-Match": '"1"'}).status == 422


@pytest.mark.parametrize(
    "path",
    ["/tasks/not-an-id", "/tasks/%2e%2e", "/tasks/" + "a" * 10_000, "/tasks/{01a22c1b-4037-754f-97f2-a463dd9dbbc7}"],
    ids=len,
)
def test_what_cannot_be_an_id_is_not_found(api: Api, path: str) -> None:
    assert api.ask("GET", path).status == 404


@pytest.mark.parametrize("path", ["/tasks/", "/nothing", "/tasks/%2e%2e/x", "/livez/", "/"])
def test_an_unknown_path_is_not_found_and_never_redirected(api: Api, path: str) -> None:
    for method in ("GET", "POST"):
        answer = api.ask(method, path, {} if method == "POST" else None, {"X-Forwarded-Proto": "https"})
        assert answer.status == 404


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/tasks", "GET, HEAD, POST"),
        ("/tasks/batch", "POST"),
        ("/tasks/01a22c1b-4037-754f-97f2-a463dd9dbbc7", "GET, HEAD"),
        ("/tasks/01a22c1b-4037-754f-97f2-a463dd9dbbc7/cancel", "POST"),
        ("/livez", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
    ],
)
@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "BREW"])
def test_a_method_that_a_path_does_not_have_is_answered_with_those_it_has(
    api: Api, method: str, path: str, allow: str
) -> None:
    answer = api.ask(method, path)
    assert (answer.status, answer.headers["Allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/tasks", "/workers", "/openapi.json"])
def test_head_answers_as_get_does(api: Api, path: str) -> None:
    assert api.ask("HEAD", path).status == api.ask("GET", path).status


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def read_from(connection: socket.socket) -> Answer:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return read(response)


def until_closed(connection: socket.socket) -> bool:
    """True once the server has closed; the connection's deadline catches one that stays open."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True
