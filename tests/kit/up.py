"""`deadsure up` as a user runs it, and everything that it started, by pid from the kernel."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from .command import start
from .pool import alive
from .postgres import free_port
from .wait import wait_until


class Up:
    """One `deadsure up` in a folder of its own. Use it as a context: at the end nothing of it is left."""

    def __init__(self, env: Mapping[str, str] = {}) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="deadsure-up-"))
        self.folder.chmod(0o755)  # as root, PostgreSQL runs as somebody else
        self.data = self.folder / "data"
        self.port = free_port()
        self._env = env
        self._log = self.folder / "log"
        self._seen: set[int] = set()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        self.everybody()
        for pid in [self.pid, *self._seen] if self.process else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait(20)
            wait_until(lambda: not self.left(), "nothing is left")
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *words: str) -> Up:
        bind = f"127.0.0.1:{self.port}"
        self.process = start("up", "--data", str(self.data), "--bind", bind, *words, env=self._env, log=self._log)
        return self

    def ready(self) -> Up:
        wait_until(lambda: self._still_running() and "deadsure is ready" in self.log, "it is ready", 60)
        self.everybody()
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def supervisor(self) -> int:
        """The pid of the supervisor that runs now."""
        return wait_until(lambda: self._child("serve"), f"there is a supervisor: {self.log}")

    def postgres(self) -> int:
        """The pid of PostgreSQL's first process."""
        return wait_until(lambda: self._child("postgres"), f"there is a PostgreSQL: {self.log}")

    def everybody(self) -> set[int]:
        """All living descendants."""
        found: set[int] = set()
        waiting = [self.pid] if self.process else []
        while waiting:
            children = _children(waiting.pop())
            found.update(children)
            waiting += children
        self._seen |= found
        return found

    def left(self) -> list[int]:
        """Who of all that were ever seen is alive."""
        return [pid for pid in (self.pid, *self._seen) if alive(pid)]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, deadline: float = 40) -> int:
        """Its exit code, once it and all that it started are gone."""
        assert self.process is not None
        code = self.process.wait(deadline)
        wait_until(lambda: not self.left(), "all that it started is gone")
        return code

    def call(self, path: str, body: object = None) -> Any:
        """The JSON that the API answers; None while there is no answer, or not a good one."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with suppress(OSError, HTTPException), urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())
        return None

    def submit(self, kind: str, payload: object) -> str:
        return str(self.call("/tasks", {"kind": kind, "payload": payload})["id"])

    def wait_for(self, id: str, state: str) -> dict[str, Any]:
        """The task, once it is in this state."""

        def there() -> dict[str, Any] | None:
            task = self.call(f"/tasks/{id}")
            return task if task and task["state"] == state else None

        found = wait_until(there, f"the task is {state}: {self.log}", 30)
        assert found is not None
        return found

    def _still_running(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"up ended with {self.process.returncode}: {self.log}"
        return True

    def _child(self, word: str) -> int:
        for pid in _children(self.pid):
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and alive(pid):
                    return pid
        return 0


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
