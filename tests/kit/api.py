"""A real api child on a real socket, without a supervisor: the test itself writes the pool's shared memory."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn

from . import postgres
from .pool import ROOT, SOURCE, Answer, dsn_text
from .store import Store
from .wait import wait_until

JSON = {"Content-Type": "application/json"}


class Api:
    """One api child, forked by a host process, and a client for it."""

    def __init__(self, database: db.Settings | str, log: Path, **settings: object) -> None:
        address = database if isinstance(database, str) else dsn_text(database)
        environment = dict(os.environ) | {"PYTHONPATH": f"{SOURCE}:{ROOT / 'tests'}"}
        command = [sys.executable, "-m", "kit.api_host", json.dumps({"dsn": address, **settings})]
        self._log = log
        with log.open("wb") as errors:
            self._host = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        told = self._answer()
        self.port: int = told["port"]
        self.pid: int = told["pid"]

    def tell(self, do: str, **what: object) -> Any:
        """Have the host do something to the shared memory, or look into it."""
        assert self._host.stdin is not None
        print(json.dumps({"do": do, **what}), file=self._host.stdin, flush=True)
        return self._answer()

    def header(
        self,
        *,
        recovered: bool = True,
        ever_ready: bool = True,
        trusted: bool = True,
        announce_as: UUID | None = None,
    ) -> None:
        fields = {"recovered": recovered, "ever_ready": ever_ready, "trusted_until": 2**62 if trusted else 0}
        self.tell("header", draining=False, announce_as=announce_as and str(announce_as), **fields)

    def worker(self, phase: str, *, seat: int = 0, pid: int = 1, task: str | None = None, fence: int = 0) -> None:
        self.tell("seat", seat=seat, pid=pid, exits=2, last_exit="SIGKILL")
        self.tell("box", seat=seat, phase=phase, pid=pid, task=task, fence=fence)

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}, *, timeout: float = 20
    ) -> Answer:
        """One request on a connection of its own. `body` is sent as JSON; bytes are sent as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, raw, (JSON if raw is not None else {}) | dict(headers))
            return read(connection.getresponse())
        finally:
            connection.close()

    def submit(self, kind: str = "plain", payload: object = None, /, **more: object) -> dict[str, Any]:
        """Store a task and return it."""
        answer = self.ask("POST", "/tasks", {"kind": kind, "payload": payload, **more})
        assert answer.status == 202, answer
        body: dict[str, Any] = answer.body
        return body

    def connect(self) -> socket.socket:
        """A raw connection, for what no decent client sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def until(self, ask: Callable[[], Answer], said: str) -> Answer:
        """Ask again until the answer holds this text."""
        return wait_until(lambda: answer if said in str((answer := ask()).body) else None, f"the API says {said!r}")

    def until_loaded(self) -> None:
        """Until the application is loaded: an empty body is then a mistake of the client."""
        wait_until(lambda: self.ask("POST", "/tasks", b"").status == 400, "the application is loaded")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """SIGTERM, as the supervisor would. Returns the exit code."""
        code: int = self.tell("stop")
        return code

    def close(self) -> None:
        assert self._host.stdin is not None
        self._host.stdin.close()
        self._host.wait(20)
        assert self._host.stdout is not None
        self._host.stdout.close()

    def _answer(self) -> Any:
        assert self._host.stdout is not None
        line = self._host.stdout.readline()
        assert line, f"the host ended: {self.log}"
        return json.loads(line)


def read(response: http.client.HTTPResponse) -> Answer:
    """The answer; JSON is decoded."""
    raw = response.read()
    kind = response.headers.get_content_type()
    body: Any = json.loads(raw) if raw and kind.endswith("json") else raw
    if response.status >= 400 and raw:
        assert kind == "application/problem+json", (response.status, raw)
        assert body["type"].startswith("urn:deadsure:problem:"), body
        assert body["status"] == response.status, body
    return Answer(response.status, body, response.headers)


@contextmanager
def running(database: db.Settings | str, folder: Path, **settings: object) -> Iterator[Api]:
    """An api child for the length of a block. A bug it met (500) fails the test."""
    api = Api(database, folder / "api.log", **settings)
    try:
        yield api
    finally:
        api.close()
    assert "a request hit a bug" not in api.log, api.log
    assert "Traceback" not in api.log, api.log


@contextmanager
def fresh_store(server: EmbeddedPostgres) -> Iterator[Store]:
    """A migrated database with the kit's kinds, for the tests of a whole module."""
    with postgres.database(server, template=postgres.migrated_template(server)) as address:
        store = Store(db.Settings(dsn.parse(address), statement_timeout=10.0))
        try:
            yield store
        finally:
            store.close()
