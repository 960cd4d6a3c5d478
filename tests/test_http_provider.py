"""The HTTP provider against real sockets: what it sends, and what it makes of every way in which an answer can come."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deadsure.runtime.effects import (
    Ambiguous,
    Call,
    Contract,
    Intent,
    NotSent,
    Provider,
    Receipt,
    Rejected,
    Unavailable,
    identity_of,
    timeout_of,
)
from deadsure.runtime.http_provider import HttpProvider, Mismatched
from kit.command import environment
from kit.postgres import free_port
from kit.wait import wait_until

INTENT = Intent(account="a", amount=5)
KEY = "deadsure-1"
PROOF = {"receipt_id": "r-1", "key": KEY, "fingerprint": INTENT.fingerprint, "fields": dict(INTENT)}
SECRET = "Bearer s3cret"

Script = Callable[[socket.socket], None]


def call(timeout: float = 5.0) -> Call:
    not_after = datetime(2026, 11, 30, 12, 0, 1, 500000, tzinfo=timezone(timedelta(hours=2)))
    return Call("1", "pay", 2, 3, KEY, INTENT, INTENT.fingerprint, INTENT.canonical, not_after, timeout)


class Peer:
    """A server that reads one whole request per connection and then does with the connection what it is told."""

    def __init__(self, script: Script, wrap: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self._script = script
        self._wrap = wrap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(10)
                if self._wrap is not None:
                    with self._wrap.wrap_socket(connection, server_side=True) as secured:
                        self._answer(secured)
                else:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data or len(data.split(b"\r\n\r\n", 1)[1]) < _length(data):
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
        if data:
            self.requests.append(data)
            self._script(connection)


def _length(data: bytes) -> int:
    for line in data.split(b"\r\n\r\n")[0].split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def answer(status: int, body: object = "", *headers: str) -> Script:
    text = body if isinstance(body, bytes) else (json.dumps(body) if body != "" else "").encode()
    head = "\r\n".join([f"HTTP/1.1 {status} X", f"Content-Length: {len(text)}", *headers, "", ""]).encode()
    return lambda connection: connection.sendall(head + text)


def says(raw: bytes) -> Script:
    return lambda connection: connection.sendall(raw)


@pytest.fixture
def serve() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(script: Script, wrap: ssl.SSLContext | None = None) -> Peer:
        peers.append(Peer(script, wrap))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def provider(port: int, **more: Any) -> HttpProvider:
    return HttpProvider(f"http://127.0.0.1:{port}/transfers", name="bank", **more)


# --- what it sends


def test_a_perform_posts_the_stored_bytes_with_key_fence_and_not_after(serve: Callable[..., Peer]) -> None:
    peer = serve(answer(201, PROOF))
    assert provider(peer.port).perform(call()) == Receipt("r-1", KEY, INTENT.fingerprint, dict(INTENT))
    head, body = peer.requests[0].split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /transfers HTTP/1.1"
    assert body == INTENT.canonical
    assert {
        f"Host: 127.0.0.1:{peer.port}",
        f"Idempotency-Key: {KEY}",
        "Deadsure-Fence: 3",
        "Deadsure-Not-After: 2026-11-30T10:00:01.500000Z",
        "Content-Type: application/json",
        "Connection: close",
    } <= set(lines)
    assert len(peer.requests) == 1


def test_a_lookup_asks_for_the_key_below_the_url(serve: Callable[..., Peer]) -> None:
    peer = serve(answer(200, PROOF))
    url = f"http://127.0.0.1:{peer.port}/transfers/"
    assert HttpProvider(url, name="bank").lookup(call()) == Receipt("r-1", KEY, INTENT.fingerprint, dict(INTENT))
    assert peer.requests[0].startswith(b"GET /transfers/deadsure-1 HTTP/1.1\r\n")


def test_headers_can_be_given_or_made_for_each_request(serve: Callable[..., Peer]) -> None:
    peer = serve(answer(200, PROOF))
    made = iter(["one", "two"])
    provider(peer.port, headers={"X-Tenant": "t"}).perform(call())
    late = provider(peer.port, headers=lambda: {"Authorization": next(made)})
    late.perform(call())
    late.lookup(call())
    assert b"\r\nx-tenant: t\r\n" in peer.requests[0]
    assert [b"\r\nauthorization: " + text + b"\r\n" in request for text, request in
            zip((b"one", b"two"), peer.requests[1:], strict=True)] == [True, True]  # fmt: skip


def test_credentials_in_the_url_are_sent_and_never_shown(serve: Callable[..., Peer]) -> None:
    peer = serve(answer(200, PROOF))
    asked = HttpProvider(f"http://me:p%40ss@127.0.0.1:{peer.port}", name="bank")
    asked.perform(call())
    assert b"Authorization: Basic bWU6cEBzcw==" in peer.requests[0]
    assert asked.identity == f"http://127.0.0.1:{peer.port}"
    assert "p%40ss" not in repr(asked)
    assert "p@ss" not in repr(asked)


def test_no_proxy_of_the_environment_is_used(serve: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert provider(serve(answer(200, PROOF)).port).perform(call()).receipt_id == "r-1"


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("HTTPS://Bank.Example:443/v1/transfers/", "https://bank.example/v1/transfers"),
        ("http://u:p@bank.example:80", "http://bank.example"),
        ("http://bank.example:8080/", "http://bank.example:8080"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a"),
        ("http://bücher.example/", "http://xn--bcher-kva.example"),
    ],
)
def test_the_identity_is_the_url_in_one_form_without_credentials(url: str, identity: str) -> None:
    made = HttpProvider(url, name="bank", timeout=3)
    assert (identity_of(made), timeout_of(made), isinstance(made, Provider)) == (identity, 3.0, True)


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("ftp://me:s3cret@x/", {}),
        ("http://me:s3cret@/", {}),
        ("http://me:s3cret@x:99999/", {}),
        ("http://me:s3cret@x/?a=1", {}),
        ("http://me:s3cret@x/a b", {}),
        ("http://x/", {"timeout": 0}),
        ("http://x/", {"timeout": float("nan")}),
        ("http://x/", {"name": ""}),
        ("http://x/", {"headers": {"Idempotency-Key": "s3cret"}}),
        ("http://x/", {"headers": {"Deadsure-Fence": "s3cret"}}),
        ("http://x/", {"headers": {"X": "s3cret\r\nY: 1"}}),
        ("http://x/", {"headers": {"X Y": "s3cret"}}),
    ],
)
def test_what_cannot_be_meant_is_refused_without_showing_it(url: str, more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        HttpProvider(url, **{"name": "bank", **more})
    assert "s3cret" not in str(refused.value)


# --- perform: done, definitely not, or nobody knows


@pytest.mark.parametrize("status", [200, 201, 202])
def test_a_2xx_with_a_receipt_that_fits_is_done(serve: Callable[..., Peer], status: int) -> None:
    assert provider(serve(answer(status, PROOF)).port).perform(call()).receipt_id == "r-1"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"key": "deadsure-2"}, "another key"),
        ({"fingerprint": Intent(account="b").fingerprint}, "another intent"),
        ({"fields": {"account": "b", "amount": 5}}, "'account' differs"),
        ({"fields": {"account": "a", "amount": 5.0001}}, "'amount' differs"),
        ({"fields": {"account": "a"}}, "'amount' differs"),
        ({"receipt_id": ""}, "no receipt id"),
        ({"receipt_id": 7}, "no receipt id"),
    ],
)
def test_a_receipt_for_something_else_is_ambiguous_and_kept(
    serve: Callable[..., Peer], change: dict[str, object], why: str
) -> None:
    with pytest.raises(Mismatched, match=why) as ambiguous:
        provider(serve(answer(200, PROOF | change)).port).perform(call())
    assert isinstance(ambiguous.value, Ambiguous)
    assert isinstance(ambiguous.value.receipt, Receipt)


def test_a_contract_names_the_fields_that_a_receipt_must_repeat(serve: Callable[..., Peer]) -> None:
    peer = serve(answer(200, PROOF | {"fields": {"amount": 5}}))
    contract = Contract(True, True, 60, 5, verify=("amount",))
    assert provider(peer.port, contract=contract).perform(call()).receipt_id == "r-1"


@pytest.mark.parametrize(
    "script",
    [
        *[pytest.param(answer(status, PROOF), id=str(status)) for status in
          (300, 301, 302, 303, 304, 307, 308, 408, 409, 423, 425, 429, 500, 502, 503, 504, 599)],
        pytest.param(answer(200), id="200 without a body"),
        pytest.param(answer(204), id="204"),
        pytest.param(answer(200, []), id="200 with a list"),
        pytest.param(answer(200, {"ok": True}), id="200 with something else"),
        pytest.param(answer(200, b"<html>"), id="200 with HTML"),
        pytest.param(answer(200, b"[" * 100_000), id="200 with a deep nest"),
        pytest.param(answer(200, json.dumps(PROOF).replace("5", "NaN").encode()), id="200 with NaN"),
        pytest.param(answer(200, b"x" * 1_100_000), id="200 with more than it may have"),
        pytest.param(says(b"HTTP/1.1 200 X\r\nContent-Length: 999999999999999999\r\n\r\n{"), id="200 of an exabyte"),
        pytest.param(says(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\n{"), id="a huge chunk"),
        pytest.param(says(b"HTTP/1.1 200 X\r\nContent-Length: 500\r\n\r\n" + json.dumps(PROOF).encode()), id="cut off"),
        pytest.param(says(b"HTTP/1.1 103 X\r\n\r\nHTTP/1.1 200 X\r\n\r\n"), id="early hints"),
        pytest.param(says(b"SSH-2.0-OpenSSH\r\n"), id="no HTTP"),
        pytest.param(says(b"HTTP/1.1 200 X\r\n" + b"X: y\r\n" * 5000 + b"\r\n"), id="a head without end"),
        pytest.param(says(b""), id="closed without an answer"),
    ],
)  # fmt: skip
def test_what_does_not_say_whether_it_was_done_is_ambiguous(serve: Callable[..., Peer], script: Script) -> None:
    peer = serve(script)
    with pytest.raises(Ambiguous):
        provider(peer.port).perform(call())
    assert len(peer.requests) == 1  # never sent again, never elsewhere


def test_a_reset_after_the_request_is_ambiguous(serve: Callable[..., Peer]) -> None:
    def reset(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with pytest.raises(Ambiguous):
        provider(serve(reset).port).perform(call())


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 412, 422, 451])
def test_any_other_4xx_is_a_refusal_for_good(serve: Callable[..., Peer], status: int) -> None:
    with pytest.raises(Rejected, match=str(status)):
        provider(serve(answer(status, PROOF)).port).perform(call())


def test_a_redirect_is_not_followed(serve: Callable[..., Peer]) -> None:
    elsewhere = serve(answer(200, PROOF))
    peer = serve(answer(307, "", f"Location: http://127.0.0.1:{elsewhere.port}/"))
    with pytest.raises(Ambiguous):
        provider(peer.port).perform(call())
    assert elsewhere.requests == []


# --- not sent


def test_a_refused_connection_is_not_sent() -> None:
    with pytest.raises(NotSent, match="refused"):
        provider(free_port()).perform(call())


def test_a_host_without_an_address_is_not_sent() -> None:
    with pytest.raises(NotSent):
        HttpProvider("http://nowhere.invalid/", name="bank").perform(call())


def test_a_name_that_is_not_found_in_time_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        released.wait(20)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    with pytest.raises(NotSent):
        HttpProvider("http://bank.example/", name="bank", timeout=0.3).perform(call())
    released.set()
    assert time.monotonic() - began < 3


def test_headers_that_cannot_be_made_are_not_sent_and_not_shown(serve: Callable[..., Peer]) -> None:
    peer = serve(answer(200, PROOF))

    def vault() -> dict[str, str]:
        raise RuntimeError(SECRET)

    for headers in (vault, lambda: {"Authorization": f"{SECRET}\n"}):
        asked = provider(peer.port, headers=headers)
        with pytest.raises(NotSent) as not_sent:
            asked.perform(call())
        with pytest.raises(Unavailable) as unavailable:
            asked.lookup(call())
        assert SECRET not in f"{not_sent.value} {unavailable.value} {asked!r}"
        assert not_sent.value.__cause__ is None
    assert peer.requests == []


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


def certificate(folder: Path) -> ssl.SSLContext:
    """A server's context with a new certificate for 127.0.0.1, which lies in `folder`."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@needs_openssl
def test_a_certificate_that_nobody_vouches_for_is_not_sent(serve: Callable[..., Peer], tmp_path: Path) -> None:
    peer = serve(answer(200, PROOF), certificate(tmp_path))
    with pytest.raises(NotSent, match="certificate"):
        HttpProvider(f"https://127.0.0.1:{peer.port}/", name="bank").perform(call())
    assert peer.requests == []


@needs_openssl
def test_over_tls_it_is_the_same(serve: Callable[..., Peer], tmp_path: Path) -> None:
    peer = serve(answer(200, PROOF), certificate(tmp_path))
    trusts = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    asked = HttpProvider(f"https://127.0.0.1:{peer.port}/", name="bank", tls=trusts)
    assert asked.perform(call()).receipt_id == "r-1"
    assert asked.lookup(call()) is not None


# --- time


def drip(connection: socket.socket) -> None:
    """One byte of the head every 50 ms, for as long as somebody reads."""
    connection.sendall(b"HTTP/1.1 200 X\r\nX-Slow: ")
    while True:
        connection.sendall(b"y")
        time.sleep(0.05)


def drip_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def hold(connection: socket.socket) -> None:
    connection.recv(1)  # until the other side gives up


@pytest.mark.parametrize("script", [drip, drip_body, hold])
@pytest.mark.parametrize("shorter", ["the provider's", "the call's"])
def test_the_timeout_is_for_the_whole_call(serve: Callable[..., Peer], script: Script, shorter: str) -> None:
    peer = serve(script)
    mine, its = (0.4, 5.0) if shorter == "the provider's" else (5.0, 0.4)
    for verb, raised in (("perform", Ambiguous), ("lookup", Unavailable)):
        began = time.monotonic()
        with pytest.raises(raised):
            getattr(provider(peer.port, timeout=mine), verb)(call(its))
        assert 0.3 < time.monotonic() - began < 3


def test_a_server_that_does_not_read_costs_no_more_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = Call("1", "pay", 1, 1, KEY, INTENT, INTENT.fingerprint, b"x" * 30_000_000, datetime.now(UTC), 0.4)
        began = time.monotonic()
        with pytest.raises(Ambiguous):
            provider(listener.getsockname()[1]).perform(sent)
        assert time.monotonic() - began < 3


# --- lookup


def test_only_an_authoritative_404_is_an_absence(serve: Callable[..., Peer]) -> None:
    assert provider(serve(answer(404, "", "Deadsure-Absent: authoritative")).port).lookup(call()) is None


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(answer(404), id="a bare 404"),
        pytest.param(answer(404, "", "Deadsure-Absent: perhaps"), id="404 with another word"),
        pytest.param(answer(404, "", "Deadsure-Absent: authoritative", "Age: 3"), id="404 of a cache"),
        pytest.param(says(b"HTTP/1.1 404 X\r\nDeadsure-Absent: authoritative\r\nContent-Length: 9\r\n\r\n"), id="cut"),
        pytest.param(answer(410, "", "Deadsure-Absent: authoritative"), id="410"),
        pytest.param(answer(200), id="200 without a receipt"),
        pytest.param(answer(200, {"done": False}), id="200 with something else"),
        *[pytest.param(answer(status, PROOF), id=str(status)) for status in (201, 204, 301, 401, 403, 429, 500, 503)],
        pytest.param(says(b""), id="closed"),
    ],
)  # fmt: skip
def test_everything_else_is_no_answer(serve: Callable[..., Peer], script: Script) -> None:
    with pytest.raises(Unavailable):
        provider(serve(script).port).lookup(call())


def test_a_provider_that_cannot_be_reached_is_no_answer() -> None:
    with pytest.raises(Unavailable):
        provider(free_port()).lookup(call())


def test_a_lookup_hands_over_the_receipt_as_it_is(serve: Callable[..., Peer]) -> None:
    """Whether it proves anything is decided where the stored intent is."""
    found = provider(serve(answer(200, PROOF | {"key": "deadsure-2"})).port).lookup(call())
    assert found is not None
    assert found.key == "deadsure-2"


# --- the point between the last byte sent and the first byte read


CALLS = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from deadsure.runtime import points
from deadsure.runtime.effects import Call, Intent
from deadsure.runtime.http_provider import HttpProvider
points.arm("during_call", Path(sys.argv[1]))
intent = Intent(account="a")
call = Call("1", "pay", 1, 1, "deadsure-1", intent, intent.fingerprint, intent.canonical, datetime.now(UTC), 5.0)
HttpProvider(f"http://127.0.0.1:{sys.argv[2]}/", name="bank").perform(call)
"""


@pytest.mark.kills
def test_a_drill_can_kill_between_the_request_and_the_answer(serve: Callable[..., Peer], tmp_path: Path) -> None:
    peer = serve(answer(200, PROOF))
    report = tmp_path / "report"
    child = subprocess.Popen([sys.executable, "-c", CALLS, str(report), str(peer.port)], env=environment())
    try:
        wait_until(report.exists, "the child has come to the point")
        wait_until(lambda: len(peer.requests) == 1, "the whole request has arrived")
        assert report.read_text() == f"{child.pid}\n"
    finally:
        child.kill()
    assert child.wait(10) == -signal.SIGKILL
    assert peer.requests[0].endswith(b'\r\n\r\n{"account":"a"}')
