"""The pool that is measured: `deadsure serve` as a child process, on the measurement's queue. It dies with this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from socket import create_server
from tempfile import mkdtemp
from typing import Any

from ..runtime.errors import DeadsureError
from . import app
from .site import Site

_READY = 30.0
_DRAINED = 20.0


class BenchFailed(DeadsureError):
    """The measurement could not be carried out."""


class ServedPool:
    """A running pool: its address, and the processes it shows."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self.process = process
        self.address = address
        self._log = log

    def get(self, path: str) -> Any:
        """What the API answers there, as JSON. Raises OSError."""
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
            return json.load(answer)

    def submit(self, kind: str) -> str:
        """Submit a task of this kind, with an empty payload. Returns its id. Raises OSError."""
        body = json.dumps({"kind": kind, "payload": {}}).encode()
        request = urllib.request.Request(
            f"http://{self.address}/tasks", body, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return str(json.load(answer)["id"])

    def workers(self) -> list[dict[str, Any]]:
        """As GET /workers shows them."""
        found: list[dict[str, Any]] = self.get("/workers")["workers"]
        return found

    def wait(self, fact: Callable[[], Any], what: str, seconds: float, every: float = 0.01) -> Any:
        """Wait for a fact. Raises BenchFailed when the pool ends first, or the time is over."""
        until = time.monotonic() + seconds
        while not (found := fact()):
            if self.process.poll() is not None or time.monotonic() > until:
                last = self._log.read_text(errors="replace").splitlines()[-5:]
                raise BenchFailed(f"waited in vain until {what}; the pool last said: {' | '.join(last)}")
            time.sleep(every)
        return found

    def ready(self) -> bool:
        """Whether all its workers are ready."""
        try:
            self.get("/readyz")
            return all(worker["state"] in ("idle", "busy") for worker in self.workers())
        except (OSError, HTTPException):
            return False


@contextmanager
def serving(
    site: Site, workers: int, ledger: str = "http://127.0.0.1:1", queues: Sequence[str] = ()
) -> Iterator[ServedPool]:
    """A pool with so many workers on these queues, else on the site's own, all ready; stopped at the end."""
    with create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = {
        "APP": f"{app.__name__}:app",
        "POOL_NAME": site.name,
        "POOL_QUEUES": ",".join(queues or [site.name]),
        "POOL_WORKERS": str(workers),
        "POOL_RUNTIME_DIR": mkdtemp(prefix="pool-", dir=site.folder),
        "HTTP_BIND": address,
        "HTTP_PROCESSES": "1",
    }
    ours = {f"DEADSURE_{name}": value for name, value in settings.items()}
    environment = {**site.variables, **ours, app.NAME: site.name, app.LEDGER: ledger}
    log = site.folder / "log"
    with log.open("ab") as out:
        command = [sys.executable, "-m", "deadsure", "serve", "--owner", str(os.getpid())]
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0
        )
    pool = ServedPool(process, address, log)
    try:
        pool.wait(pool.ready, "its workers are ready", _READY)
        yield pool
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_DRAINED)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
