"""The client commands against a real HTTP server that answers as it is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kit.command import deadsure

ID = "01936f5e-8c5b-7d3e-9a51-6f0c2f1d7a10"


@dataclass
class Request:
    """What the server was asked."""

    line: str
    headers: dict[str, str]
    body: str


@dataclass
class Server:
    """Answers requests in order from `answers`, the last one again and again."""

    url: str = ""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def next(self, request: Request) -> tuple[int, Any]:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = told.next(Request(self.requestline, headers, self.rfile.read(length).decode()))
            if status == 0:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            raw = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        told.url = f"http://127.0.0.1:{running.server_address[1]}"
        yield told
        running.shutdown()


def task(state: str = "queued", **more: object) -> dict[str, object]:
    text = '{"queue": "default", "payload": {}, "result": null, "attempts": 0, "max_attempts": 1, "fence": 0}'
    flags = {"cancel_requested": False, "created_at": "2026-11-30T10:00:00Z"}
    return {"id": ID, "kind": "noop", "state": state, **json.loads(text), **flags, **more}


def problem(status: int, detail: str, **more: object) -> tuple[int, dict[str, object]]:
    return status, {"type": "urn:deadsure:problem:x", "title": "X", "status": status, "detail": detail, **more}


def test_submit_prints_the_id_and_sends_the_payloads_own_text(server: Server) -> None:
    server.answers = [(202, task())]
    done = deadsure("submit", "noop", '{"n": 1e400, "a": 1, "a": 2.50}', "--key", "k1", "--url", server.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ID}\n", "")
    [request] = server.requests
    assert request.line == "POST /tasks HTTP/1.1"
    assert request.body == '{"kind": "noop", "payload": {"n": 1e400, "a": 1, "a": 2.50}}'
    assert (request.headers["content-type"], request.headers["idempotency-key"]) == ("application/json", "k1")
    assert "authorization" not in request.headers


def test_what_the_terminal_lacks_is_escaped(server: Server) -> None:
    server.answers = [(200, task("succeeded", result={"x": "ü"}))]
    assert '{"x": "\\xfc"}' in deadsure("show", ID, "--url", server.url, env={"PYTHONIOENCODING": "ascii"}).stdout


def test_submit_reads_a_payload_from_its_input(server: Server) -> None:
    server.answers = [(202, task())]
    assert deadsure("submit", "noop", "-", "--url", server.url, stdin='{"x": "ü"}\n').returncode == 0
    assert json.loads(server.requests[0].body)["payload"] == {"x": "ü"}


@pytest.mark.parametrize("payload", ["{", "{'a': 1}", "NaN", "", "[" * 100_000])
def test_a_payload_that_is_not_json_is_not_sent(server: Server, payload: str) -> None:
    done = deadsure("submit", "noop", payload, "--url", server.url)
    assert (done.returncode, server.requests) == (2, [])
    assert "the payload is not JSON" in done.stderr


def test_submit_can_wait_for_the_end(server: Server) -> None:
    server.answers = [(202, task()), (200, task("running")), (200, task("succeeded", result={"n": 1}))]
    done = deadsure("submit", "noop", "{}", "--wait", "45", "--url", server.url)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{ID}\n")
    assert 'result        {"n": 1}' in done.stdout
    assert server.requests[1].headers["prefer"] == "wait=30"


@pytest.mark.parametrize("state", ["failed", "canceled", "unknown"])
def test_only_success_is_0_after_waiting(server: Server, state: str) -> None:
    server.answers = [(202, task()), (200, task(state))]
    assert deadsure("submit", "noop", "{}", "--wait", "9", "--url", server.url).returncode == 1


def test_waiting_outlasts_a_server_that_restarts(server: Server) -> None:
    server.answers = [(202, task()), problem(503, "away"), (0, None), problem(429, "crowded"), (200, task("succeeded"))]
    assert deadsure("submit", "noop", "{}", "--wait", "20", "--url", server.url).returncode == 0


def test_waiting_ends_with_the_time(server: Server) -> None:
    server.answers = [(202, task()), (200, task("running"))]
    done = deadsure("submit", "noop", "{}", "--wait", "0.5", "--url", server.url)
    assert done.returncode == 1
    assert f"after 0.5 s it is still running; it goes on: deadsure show {ID}" in done.stderr


def test_show_is_for_people_or_exactly_as_the_api_answers(server: Server) -> None:
    text = json.dumps(task("failed", failure_reason="boom\x1b[31m\nnext")) + " "
    server.answers = [(200, text)]
    people = deadsure("show", ID, "--url", server.url)
    assert "failure_reason  boom\\x1b[31m\\nnext\n" in people.stdout
    assert "result" not in people.stdout
    assert deadsure("show", ID, "--json", "--url", server.url).stdout == text + "\n"
    assert server.requests[0].line == f"GET /tasks/{ID} HTTP/1.1"


def test_show_tells_the_events_one_a_line(server: Server) -> None:
    detail = {"to": "unknown", "note": "a\x1b[31m"}
    events = {"events": [{"at": "2026-11-30T10:00:01Z", "event": "recovered", "detail": detail}]}
    server.answers = [(200, task("unknown")), (200, events), (200, task()), (200, {"events": []}), (200, {"no": 1})]
    shown = deadsure("show", ID, "--events", "--url", server.url).stdout
    assert shown.endswith('\n2026-11-30T10:00:01Z  recovered  {"to": "unknown", "note": "a\\u001b[31m"}\n')
    assert server.requests[1].line == f"GET /tasks/{ID}/events HTTP/1.1"
    assert deadsure("show", ID, "--events", "--url", server.url).stdout.endswith("\nnothing but the normal path\n")
    assert deadsure("show", ID, "--events", "--url", server.url).returncode == 1


def test_submit_sends_only_what_was_chosen(server: Server) -> None:
    server.answers = [(202, task())]
    words = ["--queue", "nightly", "--priority", "-3", "--run-at", "2026-12-01T06:00:00Z", "--max-attempts", "2"]
    assert deadsure("submit", "noop", "{}", *words, "--url", server.url).returncode == 0
    assert deadsure("submit", "noop", "1.50", "--priority", "0", "--url", server.url).returncode == 0
    chosen = {"queue": "nightly", "priority": -3, "run_at": "2026-12-01T06:00:00Z", "max_attempts": 2}
    assert json.loads(server.requests[0].body) == {"kind": "noop", **chosen, "payload": {}}
    assert server.requests[1].body == '{"kind": "noop", "priority": 0, "payload": 1.50}'


def test_list_passes_the_filters_on(server: Server) -> None:
    server.answers = [(200, {"tasks": [task(), task("running", cancel_requested=True)], "next": "abc"})]
    done = deadsure("list", "--state", "unknown", "--kind", "a&b", "--limit", "2", "--url", server.url)
    assert server.requests[0].line == "GET /tasks?state=unknown&kind=a%26b&limit=2 HTTP/1.1"
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["ID", "KIND", "QUEUE", "STATE", "ATTEMPTS", "CREATED_AT"]
    assert "running (cancel requested)" in lines[2]
    assert "repeat with --cursor abc" in done.stderr
    assert json.loads(deadsure("list", "--json", "--url", server.url).stdout)["next"] == "abc"


@pytest.mark.parametrize(
    ("state", "said"), [("canceled", f"{ID} canceled\n"), ("running", f"{ID} running, cancel requested\n")]
)
def test_cancel_says_what_became_of_it(server: Server, state: str, said: str) -> None:
    server.answers = [(202, task(state, cancel_requested=True))]
    assert deadsure("cancel", ID, "--url", server.url).stdout == said
    assert server.requests[0].line == f"POST /tasks/{ID}/cancel HTTP/1.1"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (problem(404, "there is no task x"), 1, "there is no task x (HTTP 404)"),
        (problem(409, "it has succeeded"), 1, "it has succeeded (HTTP 409)"),
        (problem(503, "away"), 69, "away (HTTP 503)"),
        (problem(503, "in doubt", task_id=ID), 69, f"in doubt; the task is {ID} (HTTP 503)"),
        ((200, "<html>"), 1, "does not answer as deadsure does (HTTP 200)"),
        ((302, ""), 1, "does not answer as deadsure does (HTTP 302)"),
        ((200, "[1]"), 1, "does not answer as deadsure does (HTTP 200)"),
        ((200, {}), 1, "does not answer as deadsure does"),
        ((0, None), 69, "was lost"),
    ],
)
def test_what_was_not_done_is_said(server: Server, answer: tuple[int, Any], code: int, said: str) -> None:
    server.answers = [answer]
    for words in (["show", "x"], ["cancel", "x"], ["submit", "noop", "{}"]):
        done = deadsure(*words, "--url", server.url)
        assert (done.returncode, done.stdout) == (code, "")
        [line] = done.stderr.splitlines()
        assert said in line


def test_a_lost_answer_to_a_submit_may_have_been_carried_out(server: Server) -> None:
    server.answers = [(0, None)]
    assert "it may have been carried out" in deadsure("submit", "noop", "{}", "--url", server.url).stderr
    assert "it may have been carried out" not in deadsure("show", ID, "--url", server.url).stderr


def test_no_server_is_69_and_nothing_was_sent() -> None:
    done = deadsure("list", "--url", "http://127.0.0.1:1")
    assert done.returncode == 69
    assert "no server answers at http://127.0.0.1:1 (Connection refused); nothing was sent" in done.stderr


def test_the_token_comes_from_its_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    server.answers = [(200, task())]
    env = {"DEADSURE_URL": server.url, "DEADSURE_TOKEN_FILE": str(tmp_path / "token")}
    assert deadsure("show", ID, env={**env, "http_proxy": "http://127.0.0.1:1"}).returncode == 0
    assert server.requests[0].headers["authorization"] == "Bearer t0ken"


def test_a_token_that_would_break_the_header_is_refused_unseen(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\r\nX: y\n")
    done = deadsure("show", ID, "--url", server.url, env={"DEADSURE_TOKEN_FILE": str(tmp_path / "token")})
    assert (done.returncode, server.requests) == (78, [])
    assert "t0ken" not in done.stderr


def test_the_server_is_found_where_the_configuration_has_it_listen(server: Server, tmp_path: Path) -> None:
    server.answers = [(200, task())]
    port = server.url.rpartition(":")[2]
    (tmp_path / "d.toml").write_text(f"[http]\nbind = '0.0.0.0:{port}'")
    assert deadsure("show", ID, "--config", str(tmp_path / "d.toml")).returncode == 0


def test_a_url_may_have_a_path_before_ours(server: Server) -> None:
    server.answers = [(200, task())]
    deadsure("show", "a/../b", "--url", f"{server.url}/tasks-of/ada/")
    assert server.requests[0].line == "GET /tasks-of/ada/tasks/a%2F..%2Fb HTTP/1.1"
