"""The proxy as a child process, on a Unix socket of its own: there the kernel tells which process has connected."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

from ...runtime.dsn import Dsn
from ...runtime.errors import ConfigurationError
from .plan import SoakPlan

_PORT = 5432  # only a part of the socket's name
#: Of each exchange, that its answer is lost.
CHANCE = 0.006


@dataclass(frozen=True, slots=True)
class ProxyProcess:
    """A running proxy. `dsn` is the database through it."""

    dsn: str
    process: subprocess.Popen[bytes]

    def no_more_faults(self) -> None:
        """From now on it only passes on."""
        self.process.send_signal(signal.SIGUSR1)


@contextmanager
def running(plan: SoakPlan, database: Dsn, log: Path) -> Iterator[ProxyProcess]:
    """A proxy before this database. Raises ConfigurationError for one that it could not see through."""
    if len(database.hosts) != 1 or database.sslmode != "disable":
        raise ConfigurationError("a soak stands between the pools and their database: give it one host, without TLS")
    folder = Path(mkdtemp(prefix="deadsure-"))  # short: a Unix socket's path has at most 107 bytes
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"{folder}/.s.PGSQL.{_PORT}")
        listener.listen(128)
        process = _start(plan, str(database.hosts[0]), listener.fileno(), log)
        try:
            yield ProxyProcess(_dsn(database, folder), process)
        finally:
            process.kill()
            process.wait()
    finally:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)


def _start(plan: SoakPlan, server: str, listener: int, log: Path) -> subprocess.Popen[bytes]:
    words = ["--listener", str(listener), "--server", server, "--log", str(log), "--owner", str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-m", "deadsure.drills.soak.proxy", *words, "--seed", str(plan.seed), "--chance", str(CHANCE)],
        pass_fds=[listener],
        stdin=subprocess.DEVNULL,
        process_group=0,
    )


def _dsn(database: Dsn, folder: Path) -> str:
    password = f":{quote(database.password, safe='')}" if database.password else ""
    user, name = quote(database.user, safe=""), quote(database.database, safe="")
    return f"postgresql://{user}{password}@:{_PORT}/{name}?host={quote(str(folder))}"
