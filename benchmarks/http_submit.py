"""POST /tasks over 32 connections: the real api child, and the same server and route without a database.

Run with `make bench`. Both variants are a freshly forked api child; in the second the writer's flush answers at once
instead of asking PostgreSQL, so that the ratio tells what the database costs. They take turns within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from deadsure.httpapi import writer
from deadsure.httpapi.serve import serve
from deadsure.httpapi.settings import ApiSettings
from deadsure.runtime import db, dsn
from deadsure.runtime.blackbox import Header, PoolMemory
from deadsure.runtime.model import Kind
from deadsure.runtime.store import migrate, pool
from deadsure.runtime.store.read import TaskRow
from deadsure.runtime.store.submit import Accepted
from deadsure.supervisor.lease import boottime
from kit import postgres

BODY = json.dumps({"kind": "noop", "payload": {"text": "a small payload"}}).encode()
LOAD_CLIENT = """
import socket, sys, threading, time
port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
body = sys.argv[4].encode()
request = (b"POST /tasks HTTP/1.1\\r\\nHost: 127.0.0.1:%d\\r\\nContent-Type: application/json\\r\\n"
           b"Content-Length: %d\\r\\n\\r\\n" % (port, len(body))) + body
done = [0] * connections
until = time.monotonic() + seconds
def work(n):
    s = socket.create_connection(("127.0.0.1", port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    f = s.makefile("rb")
    while time.monotonic() < until:
        s.sendall(request)
        status = f.readline()
        length = 0
        while (line := f.readline()) != b"\\r\\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        f.read(length)
        assert b" 202 " in status, status
        done[n] += 1
threads = [threading.Thread(target=work, args=(n,)) for n in range(connections)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sum(done))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    arguments = parser.parse_args()
    with postgres.running_server(durable=True) as server, postgres.database(server) as address:
        settings = db.Settings(dsn.parse(address))
        _prepare(settings)
        rates: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(arguments.rounds):
            for name, before in (("with", _as_it_is), ("without", _without_database)):
                rates[name].append(_measure(settings, before, arguments.connections, arguments.seconds))
    ratios = [a / b for a, b in zip(rates["with"], rates["without"], strict=True)]
    print(f"POST /tasks over {arguments.connections} connections, median of {arguments.rounds} rounds:")
    print(f"  with PostgreSQL   {statistics.median(rates['with']):.0f} requests/s")
    print(f"  without           {statistics.median(rates['without']):.0f} requests/s")
    print(f"  ratio             {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")
    return 0


def _prepare(settings: db.Settings) -> None:
    connection = db.connect(settings, "bench")
    migrate.migrate(connection)
    pool.register_kinds(connection, [Kind("noop")])
    connection.close()


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


def _measure(settings: db.Settings, before: Callable[[], None], connections: int, seconds: float) -> float:
    """Requests a second that one api child answers."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    memory = PoolMemory(1)
    memory.write_header(Header(True, True, False, boottime() + 10**12))
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    assert threading.active_count() == 1
    pid = os.fork()
    if pid == 0:
        before()
        os._exit(serve(listener, memory, wake, ApiSettings(settings, bind=f"127.0.0.1:{port}")))
    listener.close()
    try:
        _load(port, 2, 0.3)
        started = time.perf_counter()
        return _load(port, connections, seconds) / (time.perf_counter() - started)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        os.close(wake)


def _load(port: int, connections: int, seconds: float) -> int:
    """Answers that a client in a process of its own got."""


    command = [sys.executable, "-c", LOAD_CLIENT, str(port), str(connections), str(seconds), BODY.decode()]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
