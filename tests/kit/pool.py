"""A pool of real processes: `deadsure serve` on a real PostgreSQL, asked over HTTP and killed by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any

from deadsure.runtime import db

from .postgres import free_port
from .wait import wait_until

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / ".ci" / "path"


@dataclass(frozen=True)
class Answer:
    """What the API said."""

    status: int
    body: Any
    headers: Message = field(default_factory=Message)  # names in any case


@dataclass
class Pool:
    """One pool. `runtime_dir` stays the same when it is started again, as on a real host."""

    database: db.Settings
    runtime_dir: Path
    app: str = "kit.app:app"
    workers: int = 1
    options: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    _pids: set[int] = field(default_factory=set)

    @property
    def log(self) -> str:
        """Everything the pool printed, over all its starts."""
        path = self.runtime_dir / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, ready: bool = True, output: int | None = None) -> Pool:
        """Start it, into the log or into the descriptor `output`; wait until it is ready."""
        environment = dict(os.environ) | {
            "PYTHONPATH": f"{SOURCE}:{ROOT / 'tests'}",
            "DEADSURE_DATABASE_DSN": dsn_text(self.database),
            "DEADSURE_POOL_WORKERS": str(self.workers),
            "DEADSURE_POOL_RUNTIME_DIR": str(self.runtime_dir),
            "DEADSURE_HTTP_BIND": f"127.0.0.1:{self.port}",
            "DEADSURE_APP": self.app,
            **{f"DEADSURE_{name}": value for name, value in self.options.items()},
        }
        environment |= self.environment
        with (self.runtime_dir / "log").open("ab") as log:
            command = [*self.prefix, sys.executable, "-m", "deadsure", "serve"]
            out = log.fileno() if output is None else output
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, process_group=0)
        if ready:
            wait_until(self.is_ready, "the pool is ready", 30)
        return self

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the supervisor ended with {self.process.returncode}: {self.log}"
        return self.get("/readyz").status == 200

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def worker_pids(self) -> list[int]:
        """The pids of the workers that are there, from shared memory through the API; waits while that is replaced."""
        answer = wait_until(lambda: found if (found := self.get("/workers")).status else None, "the API answers")
        assert answer is not None
        found = [w["pid"] for w in answer.body["workers"] if w["pid"]]
        self._pids.update(found)
        return found

    def children(self) -> list[int]:
        """All living children of the supervisor, from the kernel."""
        with suppress(FileNotFoundError, ProcessLookupError):
            found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            self._pids.update(int(pid) for pid in found)
            return [int(pid) for pid in found]
        return []

    def kill_all(self) -> None:
        """SIGKILL to supervisor, workers and api child, as fast as we can, and wait until all are gone."""
        victims = [self.pid, *self.children()]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(20)
        wait_until(lambda: not any(alive(pid) for pid in victims), "the whole pool is gone")

    def stop(self, deadline: float = 40) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(deadline)

    def get(self, path: str) -> Answer:
        return self._call("GET", path)

    def submit(self, kind: str, payload: object = None, **fields: object) -> str:
        """Submit a task and return its id; fails the test unless it was accepted."""
        answer = self.post("/tasks", {"kind": kind, "payload": payload or {}, **fields})
        assert answer.status == 202, answer
        return str(answer.body["id"])

    def post(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        return self._call("POST", path, json.dumps(body).encode() if body is not None else b"", headers)

    def task(self, id: str) -> dict[str, Any]:
        answer = self.get(f"/tasks/{id}")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.body
        return found

    def wait_for(self, id: str, *states: str, deadline: float = 20) -> dict[str, Any]:
        """The task, once it is in one of these states."""

        def there() -> dict[str, Any] | None:
            answer = self.get(f"/tasks/{id}")
            if answer.status == 0:
                return None  # the api child is being replaced
            assert answer.status == 200, answer
            return answer.body if answer.body["state"] in states else None

        found = wait_until(there, f"task {id} is {' or '.join(states)}: {self.log[-2000:]}", deadline)
        assert found is not None
        return found

    def _call(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        head = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, head, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return Answer(answer.status, _decoded(answer.read()), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _decoded(error.read()), error.headers)
        except (OSError, HTTPException) as error:  # the child may die between the head and the body
            return Answer(0, str(error))

    def close(self) -> None:
        """Whatever is left dies, by pid."""
        if self.process is not None and self.process.poll() is None:
            self.kill_all()


def _decoded(raw: bytes) -> Any:
    return json.loads(raw) if raw else None


def dsn_text(settings: db.Settings) -> str:
    """The DSN as its text, for another process."""
    dsn = settings.dsn
    host = dsn.hosts[0]
    if host.is_socket:
        return f"postgresql://{dsn.user}@:{host.port}/{dsn.database}?host={host.name}"
    return f"postgresql://{dsn.user}@{host.name}:{host.port}/{dsn.database}"


def alive(pid: int) -> bool:
    """Whether this process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def new_runtime_dir() -> Path:
    """A private folder with a short path."""
    made = Path(tempfile.mkdtemp(prefix="deadsure-pool-"))
    made.chmod(0o700)
    return made

