"""What a pool is told when it is started. Durations are seconds."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..metrics.memory import MetricsMemory
from ..runtime.blackbox import PoolMemory
from ..runtime.db import Settings


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """One pool of workers on this host."""

    database: Settings
    app: str
    app_dir: Path
    runtime_dir: Path
    name: str = "default"
    workers: int = 4
    queues: tuple[str, ...] = ("default",)
    lease: float = 60.0
    renew_every: float = 5.0
    poll_interval: float = 1.0
    drain_timeout: float = 30.0
    start_timeout: float = 30.0
    api_processes: int = 1
    #: For drills: the point at which the first worker to reach it waits to be killed, and the file that says so.
    drill: tuple[str, Path] | None = None
    #: The service manager's socket and its watchdog limit; None without one.
    notify_socket: str | None = None
    watchdog: float | None = None


#: The api child's whole life: it serves on this socket until SIGTERM, reads the pool's memory, wakes idle workers by
#: writing to the eventfd, and counts in the metrics' page of its number (from 0). Returns its exit code.
ApiMain = Callable[[socket.socket, PoolMemory, int, MetricsMemory, int], int]
