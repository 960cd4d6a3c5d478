"""Host names of the database: resolved by a child, so that the supervisor's loop never waits for a name server."""

from __future__ import annotations

import os
import subprocess
import sys

from kit.pool import SOURCE

SCRIPT = """
import os, socket, sys, time
from deadsure.runtime import dsn
from deadsure.supervisor.resolver import Resolver
{before}
resolver = Resolver(dsn.parse({address!r}))
began = time.monotonic()
longest = 0.0
while resolver.resolved() is None and time.monotonic() - began < {patience}:
    step = time.monotonic()
    resolver.keep()
    longest = max(longest, time.monotonic() - step)
    time.sleep(0.005)
found = resolver.resolved()
print([(host.name, host.address) for host in found.hosts] if found else None, longest < 0.5)
resolver.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def _run(address: str, before: str = "", patience: float = 20.0) -> list[str]:
    script = SCRIPT.format(address=address, before=before, patience=patience)
    environment = dict(os.environ) | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_name_becomes_an_address_and_keeps_its_name_for_tls() -> None:
    said = _run("postgresql://u@localhost:5432/d")
    assert said[0] in ("[('localhost', '127.0.0.1')] True", "[('localhost', '::1')] True")
    assert said[1] == "no child is left"


def test_addresses_and_sockets_need_no_child() -> None:
    assert _run("postgresql://u@127.0.0.1,[::1]/d")[0] == "[('127.0.0.1', None), ('::1', None)] True"
    assert _run("postgresql://u@/d?host=/run/postgresql")[0] == "[('/run/postgresql', None)] True"


def test_a_name_server_that_hangs_holds_nobody_up() -> None:
    hang = "socket.getaddrinfo = lambda *a, **k: time.sleep(60)"
    assert _run("postgresql://u@db.invalid/d", hang, patience=1.0) == ["None True", "no child is left"]


def test_the_other_hosts_are_used_when_one_has_no_address() -> None:
    fail = "def fail(*a, **k): raise socket.gaierror('no such name')\nsocket.getaddrinfo = fail"
    assert _run("postgresql://u@db.invalid,127.0.0.1/d", fail)[0] == "[('127.0.0.1', None)] True"
