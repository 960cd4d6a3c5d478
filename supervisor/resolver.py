"""Host names, resolved outside the loop: a name server that does not answer must not hold up lease and watchdog.

`getaddrinfo` has no deadline and cannot be interrupted. So a short-lived child asks, and the loop reads its answer.
Addresses and Unix sockets need no child.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from contextlib import suppress
from dataclasses import replace

from ..runtime.dsn import Dsn
from .child import Child, fork

#: Seconds for which an answer is used while the database is away, before the names are asked for again.
FRESH = 10.0
#: Seconds after which a child that got no answer is killed.
PATIENCE = 10.0


class Resolver:
    """The addresses behind a DSN's host names, as they were last known."""

    def __init__(self, dsn: Dsn) -> None:
        self._dsn = dsn
        self._names = sorted({host.name for host in dsn.hosts if not host.is_socket and not _is_address(host.name)})
        self._found: dict[str, str] = {}
        self._child: Child | None = None
        self._asked_at = 0.0
        self._wanted = bool(self._names)

    def resolved(self) -> Dsn | None:
        """The DSN with the addresses that are known; None while none of its hosts can be reached by one."""
        if not self._names:
            return self._dsn
        hosts = tuple(
            replace(host, address=self._found[host.name]) if host.name in self._found else host
            for host in self._dsn.hosts
            if host.name in self._found or host.name not in self._names
        )
        return replace(self._dsn, hosts=hosts) if hosts else None

    def distrust(self) -> None:
        """The database cannot be reached: the name may mean another address by now."""
        self._wanted = bool(self._names)

    def keep(self) -> None:
        """Start asking when that is wanted, and take the answer when it is there. Never waits."""
        now = time.monotonic()
        if self._child is not None:
            self._collect(now)
        elif self._wanted and (now - self._asked_at >= FRESH or not self._asked_at):
            self._asked_at = now
            with suppress(OSError):  # nothing is left to start one with: asked again later
                self._child = fork(self._ask, [])
                self._wanted = False

    @property
    def pids(self) -> set[int]:
        """The child that asks."""
        return set() if self._child is None else {self._child.pid}

    @property
    def due(self) -> list[float]:
        """When (time.monotonic) the next look is due."""
        return [time.monotonic() + 0.02] if self._child is not None else []

    def close(self) -> None:
        """Give up asking."""
        if self._child is not None:
            self._child.kill()
            self._end(self._child)

    def _collect(self, now: float) -> None:
        assert self._child is not None
        if self._child.exit() is None:
            if now - self._asked_at >= PATIENCE:
                self._child.kill()
            return
        with suppress(BlockingIOError):
            for line in os.read(self._child.output, 65536).decode("ascii", "replace").splitlines():
                name, _, address = line.partition(" ")
                if name in self._names and _is_address(address):
                    self._found[name] = address
        self._wanted = self._wanted or any(name not in self._found for name in self._names)
        self._end(self._child)

    def _end(self, child: Child) -> None:
        os.close(child.output)
        child.reap()
        self._child = None

    def _ask(self) -> int:
        """In the child: one line per name that has an address."""
        for name in self._names:
            with suppress(OSError):
                address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
                os.write(1, f"{name} {address}\n".encode())
        return 0


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
