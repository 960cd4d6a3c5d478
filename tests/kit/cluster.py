"""A PostgreSQL of a test's own, to be crashed, frozen, replicated and promoted; and a pair of them.

The processes are killed, never the machine: what a server has written stays, so fsync is off, and full_page_writes on,
because a SIGKILL can tear a page.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deadsure.cli.embedded import NAME, EmbeddedPostgres
from deadsure.cli.embedded_binaries import find_binaries
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate

from . import postgres
from .pool import Pool, new_runtime_dir
from .wait import wait_until

SETTINGS = postgres.TIDY | {"fsync": "off", "full_page_writes": "on", "wal_retrieve_retry_interval": "100ms"}


def port() -> int:
    """A free TCP port below those that the kernel hands out: while a server is down, nobody else comes to sit on it."""
    while True:
        number = random.randint(15_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", number))
            return number


@contextmanager
def running(settings: Mapping[str, str] = {}) -> Iterator[EmbeddedPostgres]:
    """A server of one's own; at the end it is gone with its folder."""
    postgres.remove_leftovers()
    with postgres.scratch_folder() as folder:
        server = EmbeddedPostgres(folder / "a", port=port(), settings=SETTINGS | dict(settings))
        try:
            server.start()
            yield server
        finally:
            thaw(server)
            server.stop("immediate")


def with_schema(server: EmbeddedPostgres) -> db.Settings:
    """A fresh database in it with the product's schema, through TCP."""
    settings = db.Settings(dsn.parse(postgres.fresh_database(server, tcp=True)))
    connection = db.connect(settings, "migrate")
    migrate.migrate(connection)
    connection.close()
    return settings


def freeze(server: EmbeddedPostgres) -> None:
    """Stop every process of it: the kernel still accepts connections for it, and nobody answers."""
    for pid in _processes(server):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def thaw(server: EmbeddedPostgres) -> None:
    """Let a frozen server go on."""
    for pid in _processes(server):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _processes(server: EmbeddedPostgres) -> list[int]:
    """The first process first: stopped, it starts no others."""
    if server.pid is None:
        return []
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [server.pid, *map(int, children)]


@dataclass
class Pair:
    """A primary and a standby of it, which change places at every fail-over. The two ports stay."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres
    synchronous: bool = True

    @property
    def hosts(self) -> tuple[dsn.Host, ...]:
        """Both, always in the same order, whoever is the primary."""
        return tuple(dsn.Host("127.0.0.1", number) for number in sorted((_port(self.primary), _port(self.standby))))

    def replicate(self) -> None:
        """Make the standby anew from the primary, and return when it follows."""
        _copy(self.primary, self.standby)
        self.standby.start()
        wait_until(lambda: self.ask("select 1 from pg_stat_replication where state = 'streaming'"), "it follows")
        self.wait_for_standby(self.synchronous)

    def wait_for_standby(self, wanted: bool) -> None:
        """From now on every commit waits for the standby, or none does."""
        self.tell(f"alter system set synchronous_standby_names = '{'*' if wanted else ''}'", "select pg_reload_conf()")
        state = "sync" if wanted else "async"
        wait_until(lambda: self.ask(f"select 1 from pg_stat_replication where sync_state = '{state}'"), state)

    def cut(self) -> None:
        """The standby hears nothing more from the primary, and neither knows why."""
        self._follow("")
        wait_until(lambda: not self.ask("select 1 from pg_stat_replication"), "it does not follow any more")

    def join(self) -> None:
        """The standby follows again, from where it was."""
        self._follow(_conninfo(self.primary))
        wait_until(lambda: self.ask("select 1 from pg_stat_replication where state = 'streaming'"), "it follows")

    def _follow(self, whom: str) -> None:
        with postgres.admin(self.standby) as session:
            session.run(f"alter system set primary_conninfo = '{whom}'")
            session.run("select pg_reload_conf()")

    def promote(self) -> None:
        """The standby becomes the primary, alone for now, and the other one is what will be made anew."""
        with postgres.admin(self.standby) as session:
            session.run("select pg_promote(true, 30)")
        self.primary, self.standby = self.standby, self.primary

    def ask(self, text: str) -> list[list[object]]:
        """What the primary says."""
        with postgres.admin(self.primary) as session:
            rows: list[list[object]] = session.run(text)
            return rows

    def tell(self, *statements: str) -> None:
        """Have the primary carry out statements without a transaction around them."""
        with postgres.admin(self.primary) as session:
            for statement in statements:
                session.run(statement)


@contextmanager
def pair(*, synchronous: bool = True) -> Iterator[Pair]:
    """A running pair; at the end both are gone with their folders."""
    postgres.remove_leftovers()
    with postgres.scratch_folder() as folder:
        servers = [EmbeddedPostgres(folder / name, port=port(), settings=SETTINGS) for name in ("a", "b")]
        made = Pair(*servers, synchronous=synchronous)
        try:
            made.primary.start()
            made.replicate()
            yield made
        finally:
            for server in servers:
                thaw(server)
                server.stop("immediate")


def _port(server: EmbeddedPostgres) -> int:
    assert server.port is not None
    return server.port


def _conninfo(primary: EmbeddedPostgres) -> str:
    return f"user={NAME} host=127.0.0.1 port={primary.port}"


def _copy(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """Put a copy of the primary's cluster into the standby's folder, told to follow; it waits for no standby itself."""
    standby._folder.adopt()
    cluster = standby._folder.cluster
    shutil.rmtree(cluster, ignore_errors=True)
    where = ["-h", str(primary.socket), "-p", str(primary.port), "-U", NAME]
    how = ["-D", str(cluster), "--checkpoint=fast", "--wal-method=stream", "--no-sync"]
    command = [str(find_binaries().program("pg_basebackup")), *where, *how]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with (cluster / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = '{_conninfo(primary)}'\nsynchronous_standby_names = ''\n")
    (cluster / "standby.signal").touch()
    owner = primary._folder.cluster.stat()
    for path in (cluster, *cluster.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


@contextmanager
def pool(settings: db.Settings, **options: Any) -> Iterator[Pool]:
    """A pool on these servers, not started yet; at the end it is gone with its folder."""
    hosts = ",".join(str(host) for host in settings.dsn.hosts)
    address = f"postgresql://{settings.dsn.user}@{hosts}/{settings.dsn.database}"
    given = {"DATABASE_DSN": address} | options.pop("options", {})
    made = Pool(settings, new_runtime_dir(), options=given, **options)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(made.runtime_dir, ignore_errors=True)


def only(settings: db.Settings, server: EmbeddedPostgres) -> db.Settings:
    """The same database, on this server alone."""
    return replace(settings, dsn=replace(settings.dsn, hosts=(dsn.Host("127.0.0.1", _port(server)),)))


def on_both(settings: db.Settings, servers: Pair) -> db.Settings:
    """The same database, on whichever of the two is the primary."""
    return replace(settings, dsn=replace(settings.dsn, hosts=servers.hosts))
