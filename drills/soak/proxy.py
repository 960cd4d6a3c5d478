"""Between a pool and its PostgreSQL: loses answers at random, and notes every transaction.

Of each exchange (what a client says before it listens) it knows where it ends and whether the server then stands inside
a transaction; that is all it understands of the protocol. One thread, one process. SIGUSR1: no more faults from now on.

    python -m deadsure.drills.soak.proxy --listener FD --server HOST:PORT|FILE --log FILE --seed N --chance P ...
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...supervisor import kernel

#: It never arrives; it is carried out and nobody hears of it; the same, and the server finds its client gone.
Fault = Literal["dropped", "answer lost", "cut off"]
FAULTS: tuple[Fault, ...] = ("dropped", "answer lost", "cut off")
_ANSWERED = b"SQ"  # Sync and Query: the client listens until the server is ready
_ENDS = b"SQXp"
_READY = b"Z"
#: Seconds for which a side that takes nothing is waited for: it may stand still on purpose.
_PATIENCE = 0.5


@dataclass(eq=False, slots=True)
class Session:
    """A client and a server. `since`: when the transaction under way began."""

    client: socket.socket
    server: socket.socket
    pid: int
    application: str = ""
    said: bytes = b""
    answered: bytes = b""
    losing: bool = False
    open: bool = True
    since: float | None = None

    def exchanges(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """What is whole now, and whether it will be answered with a readiness."""
        self.said += data
        at = 0
        while len(self.said) >= at + 5:
            typed = int(bool(self.application))
            size = typed + struct.unpack_from("!i", self.said, at + typed)[0]
            kind = self.said[at : at + 1]
            at += size
            if len(self.said) < at:
                return
            if not typed or kind in _ENDS:
                raw, self.said, at = self.said[:at], self.said[at:], 0
                self.application = self.application or _application(raw)
                yield raw, bool(typed) and kind in _ANSWERED

    def readiness(self, data: bytes) -> Iterator[bytes]:
        """The states of the server's readinesses in these bytes: I (idle), T or E (inside a transaction)."""
        self.answered += data
        while len(self.answered) >= 5:
            size = 1 + struct.unpack_from("!i", self.answered, 1)[0]
            if len(self.answered) < size:
                return
            if self.answered[:1] == _READY:
                yield self.answered[5:6]
            self.answered = self.answered[size:]


@dataclass(slots=True)
class Proxy:
    """Everything it does, until it is killed."""

    listener: socket.socket
    server: str
    log: int
    dice: random.Random
    chance: float
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self) -> None:
        """For ever."""
        self.selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    self._accept()
                elif key.data.open:  # its other side may have ended it a moment ago
                    self._read(key.data, key.fileobj is key.data.client)

    def _accept(self) -> None:
        client, _ = self.listener.accept()
        pid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        try:
            server = _connect(self.server)
        except OSError:
            client.close()
            return
        session = Session(client, server, pid)
        for end in (client, server):
            end.settimeout(_PATIENCE)
            self.selector.register(end, selectors.EVENT_READ, session)

    def _read(self, session: Session, from_client: bool) -> None:
        end = session.client if from_client else session.server
        try:
            data = end.recv(262144)
            if not data:
                self._end(session)
            elif from_client:
                self._forward(session, data)
            else:
                self._answer(session, data)
        except OSError:
            self._end(session)

    def _forward(self, session: Session, data: bytes) -> None:
        for raw, answered in session.exchanges(data):
            fault = self.dice.choice(FAULTS) if answered and self.dice.random() < self.chance else None
            if fault is not None:
                said = raw[5:-1].decode(errors="replace") if raw[:1] == b"Q" else ""
                self._note(fault=fault, pid=session.pid, application=session.application, said=said)
            if fault != "dropped":
                session.server.sendall(raw)
            session.losing = fault == "answer lost"
            if fault in ("dropped", "cut off"):
                self._end(session)
                return

    def _answer(self, session: Session, data: bytes) -> None:
        for state in session.readiness(data):
            if state == b"I":
                self._transaction_ended(session)
            elif session.since is None:
                session.since = time.monotonic()
            if session.losing:
                self._end(session)
                return
        if not session.losing:
            session.client.sendall(data)

    def _transaction_ended(self, session: Session) -> None:
        if session.since is not None:
            self._note(pid=session.pid, application=session.application, start=session.since, end=time.monotonic())
            session.since = None

    def _end(self, session: Session) -> None:
        session.open = False
        self._transaction_ended(session)
        for end in (session.client, session.server):
            self.selector.unregister(end)
            end.close()

    def _note(self, **line: object) -> None:
        os.write(self.log, json.dumps({"at": time.monotonic(), **line}).encode() + b"\n")


def _application(startup: bytes) -> str:
    words = startup[8:].split(b"\0")
    return dict(zip(words[::2], words[1::2], strict=False)).get(b"application_name", b"?").decode(errors="replace")


def _connect(server: str) -> socket.socket:
    if not server.startswith("/"):
        host, _, port = server.rpartition(":")
        return socket.create_connection((host, int(port)), _PATIENCE)
    found = socket.socket(socket.AF_UNIX)
    try:
        found.connect(server)
    except OSError:
        found.close()
        raise
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until killed, or until the process that owns it has gone."""
    parser = ArgumentParser(prog="python -m deadsure.drills.soak.proxy")
    parser.add_argument("--listener", required=True, type=int, metavar="FD", help="a Unix socket that listens")
    parser.add_argument("--server", required=True, metavar="HOST:PORT|FILE")
    parser.add_argument("--log", required=True, type=Path, metavar="FILE")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--chance", required=True, type=float, help="of a fault, for each exchange")
    parser.add_argument("--owner", required=True, type=int, metavar="PID", help="the parent that it must not outlive")
    given = parser.parse_args(argv)
    kernel.die_with_parent(given.owner)
    log = os.open(given.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    dice = random.Random(given.seed)  # noqa: S311  a choice, not a secret
    proxy = Proxy(socket.socket(fileno=given.listener), given.server, log, dice, given.chance)

    def no_more_faults(number: int, frame: object) -> None:
        proxy.chance = 0.0

    signal.signal(signal.SIGUSR1, no_more_faults)
    with suppress(KeyboardInterrupt):
        proxy.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
