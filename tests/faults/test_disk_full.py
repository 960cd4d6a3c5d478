"""No space is left on PostgreSQL's disk: 503 until there is some, and then nothing is missing."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pg8000.native
import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate
from kit import cluster, postgres, reckoning
from kit.site import QUICK, SOON
from kit.traffic import Traffic
from kit.wait import wait_until

pytestmark = pytest.mark.faults


@dataclass
class Disk:
    """A small file system."""

    folder: Path

    def fill(self) -> None:
        """Take every block that is left."""
        with suppress(OSError), (self.folder / "filler").open("ab", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def free(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    tmp_path.chmod(0o755)
    with postgres.scratch_folder() as folder:
        where = folder / "small"
        where.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m,mode=755", "tmpfs", where], check=True)
        try:
            yield Disk(where)
        finally:
            subprocess.run(["umount", "--lazy", where], check=True)


@pytest.fixture
def server(disk: Disk) -> Iterator[EmbeddedPostgres]:
    with cluster.running({"min_wal_size": "32MB", "max_wal_size": "32MB"}) as running:
        yield running
        running.stop("immediate")  # before its disk goes


def test_a_full_disk_for_the_log_is_unavailable_until_there_is_space(server: EmbeddedPostgres, disk: Disk) -> None:
    settings = cluster.with_schema(server)
    _move_wal(server, disk)
    with _flowing(settings) as clients:
        began = _full(disk, clients, lambda: _use_up_wal(server))
        wait_until(lambda: clients.since(began, "GET")[503] > 2, "reads are unavailable as well: it has crashed")
        disk.free()
        if server.alive():
            server.kill()  # it may have recovered by itself, or not; as an operator would
        server.start()
        _comes_back(clients)
    assert "PANIC" in postgres.server_log(server)


def test_a_full_disk_for_the_tables_is_unavailable_until_there_is_space(server: EmbeddedPostgres, disk: Disk) -> None:
    settings = _database_on(disk, server)
    with _flowing(settings) as clients:
        _full(disk, clients, lambda: None)
        assert 503 not in clients.statuses("GET"), "what is there can be read"
        disk.free()
        _comes_back(clients)
    assert "PANIC" not in postgres.server_log(server)


@contextmanager
def _flowing(settings: db.Settings) -> Iterator[Traffic]:
    """A pool under traffic whose payloads need room, and are not compressed away. Afterwards all is well."""
    with cluster.pool(settings, app="deadsure.drills.demo:app", workers=2, options=QUICK) as pool:
        pool.start()
        before = pool.worker_pids()
        clients = Traffic(pool.port, lambda _: ("text.analyze", {"text": secrets.token_hex(8000)}), rate=40)
        with clients.flowing():
            wait_until(lambda: clients.statuses("POST")[202] > 5, "it is flowing")
            yield clients
        clients.check()
        reckoning.settled(settings)
        assert set(reckoning.check(settings, clients)) == {"succeeded"}
        wait_until(pool.is_ready, "it is ready", SOON)
        assert pool.worker_pids() == before


def _full(disk: Disk, clients: Traffic, use_up: Callable[[], None]) -> float:
    """Fill the disk; since when submits are unavailable, and nothing else."""
    disk.fill()
    use_up()
    began = time.monotonic()

    def unavailable() -> bool:
        nonlocal began
        seen = clients.since(began, "POST")
        if seen[202]:
            began = time.monotonic()  # there was room for another one
        return seen[503] > 20 and not seen[202]

    wait_until(unavailable, "submits are unavailable", 40)
    return began


def _comes_back(clients: Traffic) -> None:
    began = time.monotonic()
    wait_until(lambda: clients.since(began, "POST")[202] > 5, "submits are accepted again", SOON)


def _move_wal(server: EmbeddedPostgres, disk: Disk) -> None:
    server.stop("fast")
    wal, there = server._folder.cluster / "pg_wal", disk.folder / "pg_wal"
    shutil.copytree(wal, there)
    owner = wal.stat()
    for path in (there, *there.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    shutil.rmtree(wal)
    wal.symlink_to(there)
    os.chown(wal, owner.st_uid, owner.st_gid, follow_symlinks=False)
    server.start()


def _use_up_wal(server: EmbeddedPostgres) -> None:
    """Write log until there is no room for more."""
    with suppress(pg8000.native.InterfaceError, OSError), postgres.admin(server) as session:
        for _ in range(400):
            session.run("select pg_logical_emit_message(false, 'fill', repeat('x', 1000000))")
        pytest.fail("the disk was never full")


def _database_on(disk: Disk, server: EmbeddedPostgres) -> db.Settings:
    """A database whose tables stand on the small disk, and nothing else does."""
    there = disk.folder / "tables"
    there.mkdir()
    owner = server._folder.cluster.stat()
    os.chown(there, owner.st_uid, owner.st_gid)
    with postgres.admin(server) as session:
        session.run(f"create tablespace small location '{there}'")
        session.run("create database small tablespace small")
    settings = db.Settings(dsn.parse(postgres.with_database(server.tcp_dsn(), "small")))
    connection = db.connect(settings, "migrate")
    migrate.migrate(connection)
    connection.close()
    return settings
