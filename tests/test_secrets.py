"""A password, a token and a payload are seen by nobody who is not meant to: no log line, problem, metric or `ps`."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from kit.pool import Pool
from kit.store import Store
from kit.wait import wait_until

PASSWORD, TOKEN, PAYLOAD = "canary-password-91c7", "canary-token-5b2e", "canary-payload-e07d"  # not secrets of anybody
CANARIES = (PASSWORD, TOKEN, PAYLOAD)


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_canary_is_seen_anywhere(new_pool: Callable[..., Pool], store: Store, tmp_path: Path, format: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ci {hashlib.sha256(TOKEN.encode()).hexdigest()} submit,read,cancel,operate,metrics\n")
    tokens.chmod(0o600)
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    options = {
        "LOG_FORMAT": format, "LOG_LEVEL": "debug", "AUTH_TOKENS_FILE": str(tokens),
        "DATABASE_PASSWORD_FILE": str(password),
    }  # fmt: skip
    pool = new_pool(options=options).start(ready=False)
    client = Client(pool)
    wait_until(lambda: client.ask("GET", "/readyz") == 200, "it is ready", 30)
    payload = {"text": PAYLOAD, "what": "surrogate", "go": "/nonexistent/go", "account": PAYLOAD}
    tasks = [client.submit(kind, payload) for kind in ("words", "raise", "return", "pay", "pay.blind", "flaky", "ids")]
    wait_until(lambda: all(client.over(task) for task in tasks), "they are over", 30)
    # What cannot be taken: each of these holds the payload, or the token in the wrong place.
    refused = [
        client.ask("POST", "/tasks", {"kind": "nobody has it", "payload": payload}),
        client.ask("POST", "/tasks", {"kind": "words", "payload": payload, "priority": PAYLOAD}),
        client.ask("POST", "/tasks", f'{{"kind": "words", "payload": "{PAYLOAD}'.encode()),
        client.ask("POST", "/tasks", {"kind": "words", "payload": f"{PAYLOAD}\0"}),
        client.ask("GET", "/tasks", headers={"Authorization": f"Bearer {TOKEN}x"}),
        client.ask("GET", f"/tasks/{tasks[0]}/resolution", {"evidence": PAYLOAD}),
    ]
    assert all(400 <= status < 500 for status in refused), refused
    blocked = client.submit("block.unknown", payload)
    wait_until(lambda: client.busy() is not None, "a worker has it")
    os.kill(client.busy() or 0, signal.SIGKILL)
    wait_until(lambda: client.over(blocked), "it is settled")
    assert client.ask("GET", "/metrics") == 200
    shown = _ps(pool)
    store.query("select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'deadsure%'")
    client.ask("GET", "/tasks")
    wait_until(lambda: client.ask("GET", "/readyz") == 200, "it is ready again", 30)
    assert pool.stop() == 0
    problems = [body for status, body in client.answers if status >= 400]
    for canary in CANARIES:
        assert canary not in pool.log
        assert canary not in shown
        assert [body for body in problems if canary in body] == []
        assert canary not in client.metrics


class Client:
    """It asks with the token, and keeps every answer."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.answers: list[tuple[int, str]] = []
        self.metrics = ""

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._pool.port, timeout=20)
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"} | dict(headers)
        try:
            connection.request(method, path, raw, head)
            answer = connection.getresponse()
            said = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()
        self.answers.append((answer.status, said))
        if path == "/metrics":
            self.metrics = said
        return answer.status

    def submit(self, kind: str, payload: object) -> str:
        assert self.ask("POST", "/tasks", {"kind": kind, "payload": payload}) == 202, self.answers[-1]
        return str(json.loads(self.answers[-1][1])["id"])

    def over(self, task: str) -> bool:
        assert self.ask("GET", f"/tasks/{task}") == 200
        return json.loads(self.answers[-1][1])["state"] not in ("queued", "running")

    def busy(self) -> int | None:
        assert self.ask("GET", "/workers") == 200
        workers = json.loads(self.answers[-1][1])["workers"]
        return next((worker["pid"] for worker in workers if worker["state"] == "busy"), None)


def _ps(pool: Pool) -> str:
    """What other users of this machine can see of the pool's processes: their command lines."""
    assert shutil.which("ps") is not None
    pids = [pool.pid, *pool.children()]
    return "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids if Path(f"/proc/{pid}").exists())
