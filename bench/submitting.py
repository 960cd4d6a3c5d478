"""How fast tasks are accepted: over HTTP beside the same server and route without a database, and in bulk beside a bare
multi-row INSERT of the same rows.

Both servers are a freshly forked api child; in the second the writer's flush answers at once instead of asking
PostgreSQL, so that the ratio tells what the database costs.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ..httpapi import writer
from ..httpapi.serve import serve
from ..httpapi.settings import ApiSettings
from ..runtime import sql
from ..runtime.blackbox import Header, PoolMemory
from ..runtime.ids import uuid7
from ..runtime.store import submit
from ..runtime.store.read import TaskRow
from ..runtime.store.submit import Accepted, Submission
from ..supervisor.lease import boottime
from .serving import BenchFailed
from .site import CHUNK, PAYLOAD, Site

_BARE = sql.statement("bench_bare_insert")
_WARM_UP = 0.2


def over_http(site: Site, connections: int, rounds: int, seconds: float) -> tuple[float, float, float]:
    """Requests a second, those without a database, and the median of the ratios of each round."""
    site.clear()
    found = [(_measure(site, _as_it_is, connections, seconds), _measure(site, _without_database, connections, seconds))
             for _ in range(rounds)]  # fmt: skip
    rates, floors = zip(*found, strict=True)
    return statistics.median(rates), statistics.median(floors), statistics.median(r / f for r, f in found)


def bulk(site: Site, tasks: int, rounds: int) -> tuple[float, float, float]:
    """Rows a second of our submit, of the bare INSERT, and the median of the ratios. They take turns."""
    site.clear()
    found = []
    for _ in range(rounds):
        ours = _timed(tasks, lambda chunk: submit.submit(site.connection, chunk), site)
        found.append((ours, _timed(tasks, lambda chunk: _bare_insert(site, chunk), site)))
    rates, floors = zip(*found, strict=True)
    return statistics.median(rates), statistics.median(floors), statistics.median(r / f for r, f in found)


def _timed(tasks: int, store: Callable[[list[Submission]], object], site: Site) -> float:
    chunks = [[Submission(uuid7(), site.kind("single"), PAYLOAD) for _ in range(CHUNK)] for _ in range(tasks // CHUNK)]
    began = time.perf_counter()
    for chunk in chunks:
        store(chunk)
    return len(chunks) * CHUNK / (time.perf_counter() - began)


def _bare_insert(site: Site, chunk: list[Submission]) -> None:
    site.connection.run(
        _BARE, ids=[task.id for task in chunk], kind=chunk[0].kind, queue=site.name, payloads=[t.payload for t in chunk]
    )


def _as_it_is() -> None:
    """Nothing is replaced."""


def _without_database() -> None:
    """In the child that is measured against: the flush answers at once."""

    def store(self: object, sent: list[writer._Waiting]) -> list[Accepted]:
        now = datetime.now(UTC)
        return [
            Accepted(
                TaskRow(
                    id=w.task.id, kind=w.task.kind, queue="default", priority=0, state="queued", payload=w.task.payload,
                    result=None, failure_reason=None, cancel_requested=False, attempts=0, max_attempts=1, timeout=None,
                    fence=0, version=1, created_at=now, run_at=now,
                )
            )
            for w in sent
        ]  # fmt: skip

    writer.Writer._store = store  # type: ignore[assignment,method-assign]


def _measure(site: Site, before: Callable[[], None], connections: int, seconds: float) -> float:
    """Requests a second that one api child answers. This process has no threads."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    memory = PoolMemory(1)
    memory.write_header(Header(True, True, False, boottime() + 10**12))
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        try:
            before()
            os._exit(serve(listener, memory, wake, ApiSettings(site.database, bind=f"127.0.0.1:{port}")))
        finally:
            os._exit(1)
    listener.close()
    try:
        _load(site, port, 2, _WARM_UP)
        began = time.perf_counter()
        return _load(site, port, connections, seconds) / (time.perf_counter() - began)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        os.close(wake)


def _load(site: Site, port: int, connections: int, seconds: float) -> int:
    words = [str(port), str(connections), str(seconds), site.kind("single")]
    command = [sys.executable, "-m", "deadsure.bench.load", *words]
    done = subprocess.run(command, env=site.variables, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise BenchFailed(f"the load failed: {done.stderr.strip().splitlines()[-1:]}")
    return int(done.stdout)
