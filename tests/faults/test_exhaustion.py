"""Connections, descriptors: what has run out comes back, and meanwhile nothing dies, spins or lies."""

from __future__ import annotations

import http.client
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pg8000.native
import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate
from kit import cluster, postgres, reckoning
from kit.pool import Pool
from kit.site import QUICK, SOON
from kit.store import Store
from kit.traffic import Traffic
from kit.wait import wait_until

pytestmark = pytest.mark.faults

#: A role that gets none of the connections that are kept for superusers.
ROLE = "ordinary"


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with cluster.running({"max_connections": "20"}) as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedPostgres) -> db.Settings:
    """A database that belongs to an ordinary role."""
    address = dsn.parse(postgres.fresh_database(server, tcp=True))
    with postgres.admin(server) as session:
        session.run(f"create role {ROLE} login")
        session.run("create role others login")
        session.run(f"alter database {address.database} owner to {ROLE}")
    made = db.Settings(replace(address, user=ROLE))
    connection = db.connect(made, "migrate")
    migrate.migrate(connection)
    connection.close()
    return made


@contextmanager
def no_connection_left(server: EmbeddedPostgres, settings: db.Settings) -> Iterator[None]:
    """Others have them all, also those that the product had."""
    with postgres.admin(server) as session, ExitStack() as others:
        session.run(f"alter role {ROLE} connection limit 0")
        session.run(f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{ROLE}'")
        for _ in range(20):  # there are as many, and some are kept for superusers
            with suppress(pg8000.native.DatabaseError):
                others.callback(_connection(server, "others").close)
        session.run(f"alter role {ROLE} connection limit -1")
        with pytest.raises(pg8000.native.DatabaseError, match="53300"):
            _connection(server, ROLE)
        yield


def _connection(server: EmbeddedPostgres, role: str) -> pg8000.native.Connection:
    assert server.port is not None
    return pg8000.native.Connection(role, host="127.0.0.1", port=server.port, database="postgres")


def test_without_a_connection_left_all_is_unavailable_and_comes_back(
    server: EmbeddedPostgres, settings: db.Settings, tmp_path: Path
) -> None:
    with cluster.pool(settings, workers=2, options=QUICK) as pool:
        with no_connection_left(server, settings):
            pool.start(ready=False)
            wait_until(lambda: pool.get("/livez").status == 200, "it lives")
            wait_until(lambda: pool.get("/readyz").status == 503, "it is not ready")
            assert "the database does not answer" in pool.get("/readyz").body["missing"]
        wait_until(pool.is_ready, "it starts after all", SOON)
        clients = Traffic(pool.port, lambda number: ("words", {"text": str(number)}))
        held = pool.submit("block.unknown", {"go": str(tmp_path / "go")})
        clients.acknowledged[held] = "block.unknown"
        pool.wait_for(held, "running")
        before = pool.worker_pids()
        with clients.flowing():
            wait_until(lambda: clients.statuses("POST")[202] > 5, "it is flowing")
            with no_connection_left(server, settings):
                began = time.monotonic()
                (tmp_path / "go").touch()
                wait_until(lambda: clients.since(began, "POST")[503] > 10, "submits are unavailable")
                assert set(clients.since(began, "POST") + clients.since(began, "GET")) == {503}
                assert pool.get("/livez").status == 200
            began = time.monotonic()
            wait_until(lambda: clients.since(began, "POST")[202], "submits are accepted again", SOON)
            assert pool.wait_for(held, "succeeded", deadline=SOON)["attempts"] == 1
            wait_until(pool.is_ready, "it is ready again", SOON)
        clients.check()
        reckoning.settled(settings)
        assert set(reckoning.check(settings, clients)) == {"succeeded"}
        assert pool.worker_pids() == before


@contextmanager
def no_descriptor_left(pid: int, spare: int = 0) -> Iterator[None]:
    """The process can open nothing more, or only as many as are spare."""
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + spare if spare else 3, usual[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


def test_a_supervisor_without_a_descriptor_left_still_settles_a_dead_workers_task(
    new_pool: Callable[..., Pool], store: Store, tmp_path: Path
) -> None:
    pool = new_pool(workers=2, options=QUICK).start()
    kinds = ("block.fail", "block.unknown")
    killed, kept = (pool.submit(kind, {"go": str(tmp_path / "go")}) for kind in kinds)
    for task in (killed, kept):
        pool.wait_for(task, "running")
    victim = next(w["pid"] for w in pool.get("/workers").body["workers"] if w["task"] == killed)
    with no_descriptor_left(pool.pid):
        os.kill(victim, signal.SIGKILL)
        reason = pool.wait_for(killed, "failed", deadline=SOON)["failure_reason"]
        assert reason == "process exited before worker completion (SIGKILL)"
        wait_until(lambda: "a worker could not be started" in pool.log, "it says why nobody sits there")
        assert _busy(pool.pid) < 0.5, "it spins"
    wait_until(lambda: len(pool.worker_pids()) == 2, "the seat is taken again", SOON)
    (tmp_path / "go").touch()
    assert pool.wait_for(kept, "succeeded")["attempts"] == 1
    pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")
    assert pool.stop() == 0


def test_an_api_without_a_descriptor_left_serves_those_it_has_and_comes_back(new_pool: Callable[..., Pool]) -> None:
    pool = new_pool(workers=1).start()
    task = pool.submit("words", {"text": "a"})
    (api,) = set(pool.children()) - set(pool.worker_pids())
    with ExitStack() as clients:
        held = http.client.HTTPConnection("127.0.0.1", pool.port, timeout=20)
        clients.callback(held.close)
        assert _status(held, f"/tasks/{task}") == 200
        with no_descriptor_left(api, spare=5):
            for _ in range(200):
                clients.enter_context(socket.create_connection(("127.0.0.1", pool.port)))
            assert _status(held, f"/tasks/{task}") == 200
            assert _status(held, "/livez") == 200
            assert _busy(api) < 0.5, "it spins"
    wait_until(lambda: pool.get("/livez").status == 200, "new callers are served", SOON)
    pool.wait_for(pool.submit("words", {"text": "b"}), "succeeded")
    assert api in pool.children()
    assert "Traceback" not in pool.log


def _status(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def _busy(pid: int, seconds: float = 2.0) -> float:
    """How much of a processor it takes."""
    before = _cpu_seconds(pid)
    time.sleep(seconds)  # a measurement needs its time
    return (_cpu_seconds(pid) - before) / seconds


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
