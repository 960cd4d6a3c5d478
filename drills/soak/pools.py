"""A pool of the soak's own: `deadsure serve` as a child process, started again in its place when it was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .. import nemesis
from ..served import Served, environment, launch
from .plan import LEASE, RENEW_EVERY, WORKERS, SoakOrders

_APP = "deadsure.drills.soak.app:app"
Role = Literal["worker", "api", "supervisor"]
_TICKS = os.sysconf("SC_CLK_TCK")
DSN = "DEADSURE_DATABASE_DSN"


@dataclass(slots=True)
class SoakPool(Served):
    """One of the pools: a host, as it were, with its lock and its address, which it keeps.

    `variables` is the environment that configures its database.
    """

    number: int
    orders: SoakOrders
    folder: Path
    variables: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=128))

    def start(self) -> None:
        """Start it, or start it again: as a service manager would."""
        fd = self.listener.fileno()
        self.runtime_dir.mkdir(mode=0o700, exist_ok=True)
        self.process = launch(["--listener", str(fd)], self._environment(), self.log, keep=[fd])

    @property
    def runtime_dir(self) -> Path:
        return self.folder / f"pool-{self.number}"

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / f"pool-{self.number}.log"

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def living(self, role: Role) -> list[int]:
        """The processes of this role that live, in the order of their pids. An api child holds the listening socket."""
        if role == "supervisor":
            return [] if self.ended else [self.pid]
        with suppress(OSError):
            children = nemesis.children(self.pid)
            return sorted(pid for pid in children if _lives(pid) and self._is_api(pid) == (role == "api"))
        return []

    def close(self) -> None:
        """Nothing of it is left; its children end with it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _is_api(self, pid: int) -> bool:
        wanted = f"socket:[{os.fstat(self.listener.fileno()).st_ino}]"
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(fd) == wanted:
                    return True
        return False

    def _environment(self) -> dict[str, str]:
        name = self.orders.plan.name
        settings = {
            "APP": _APP,
            "APP_DIR": str(self.folder),
            "POOL_NAME": name,
            "POOL_QUEUES": name,
            "POOL_WORKERS": str(WORKERS),
            "POOL_LEASE": f"{LEASE:g}",
            "POOL_RENEW_EVERY": f"{RENEW_EVERY:g}",
            "POOL_POLL_INTERVAL": "0.1",
            "POOL_DRAIN_TIMEOUT": "10",
            "POOL_RUNTIME_DIR": str(self.runtime_dir),
            "HTTP_BIND": f"127.0.0.1:{self.port}",
            "HTTP_PROCESSES": "1",
        }
        return environment(self.variables, settings, self.orders.text())


def age(pid: int) -> float:
    """Seconds since this process was forked. Raises OSError when it has gone."""
    started = int(_stat(pid)[19]) / _TICKS
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _lives(pid: int) -> bool:
    """Whether it is no zombie."""
    with suppress(OSError):
        return _stat(pid)[0] != "Z"
    return False


def _stat(pid: int) -> list[str]:
    """Of /proc/PID/stat what stands behind the name (proc_pid_stat(5)): the state, the parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
