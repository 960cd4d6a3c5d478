"""The sandbox ledger: a payment service of its own, to be called, killed and lied to by.

It speaks the protocol of runtime/http_provider.py. POST anywhere moves money, GET /KEY says whether it did, GET / lists
the last transfers for people. What it does and promises depends on its mode: see modes.py and teller.py.

    python -m deadsure.drills.ledger --book FILE --mode contract --bind 127.0.0.1:8471
"""

from __future__ import annotations

import json
import socket
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from urllib.parse import unquote

from ..supervisor import kernel
from .book import Book
from .modes import MODES, Behaviour
from .teller import Reply, Request, Teller

_LARGEST = 1024 * 1024
#: Seconds for which a flaky ledger lets a request hang.
_HANG = 60.0


class Handler(BaseHTTPRequestHandler):
    """The HTTP side: one request per connection."""

    server: Server
    server_version = "sandbox-ledger"
    sys_version = ""

    def do_POST(self) -> None:
        try:
            request = self._request()
        except ValueError as error:
            self._reply(Reply(400, {"error": str(error)}))
        else:
            self._reply(self.server.teller.post(request))

    def do_GET(self) -> None:
        key = unquote(self.path.rpartition("/")[2])
        self._reply(self.server.teller.get(key) if key else self.server.teller.page())

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the book has it."""

    def _request(self) -> Request:
        key = self.headers.get("Idempotency-Key", "")
        size = int(self.headers.get("Content-Length", "0"))
        if not key or not 0 < size <= _LARGEST:
            raise ValueError("an Idempotency-Key and a body are needed")
        fence, limit = self.headers.get("Deadsure-Fence"), self.headers.get("Deadsure-Not-After")
        body = self.rfile.read(size)
        if len(body) < size:
            raise ValueError("the body was cut off")
        until = datetime.fromisoformat(limit).astimezone(UTC).timestamp() if limit else None
        return Request(key, body, int(fence) if fence else None, until)

    def _reply(self, reply: Reply) -> None:
        self.close_connection = True
        if reply.fault == "close":
            return
        time.sleep(_HANG if reply.fault == "hang" else self.server.delay + reply.after)
        body = json.dumps(reply.body).encode()
        try:
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body)), **(reply.headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the caller has gone
            return


class Server(ThreadingHTTPServer):
    """Serves on a socket that somebody else has bound."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, teller: Teller, behaviour: Behaviour, dice: Random) -> None:
        super().__init__(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.teller = teller
        self._behaviour = behaviour
        self._dice = dice

    @property
    def delay(self) -> float:
        """Seconds that the next answer takes."""
        longest = self._behaviour.delay
        return longest * self._dice.random() if self._behaviour.faults else longest


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until killed, or until the process that owns it has gone."""
    parser = ArgumentParser(prog="python -m deadsure.drills.ledger", description="The sandbox ledger.")
    parser.add_argument("--book", required=True, type=Path, metavar="FILE")
    parser.add_argument("--mode", default="contract", choices=MODES)
    parser.add_argument("--retention", type=float, metavar="S", help="how long it remembers a key")
    parser.add_argument("--delay", type=float, metavar="S", help="how long an answer takes")
    parser.add_argument("--faults", type=float, metavar="P", help="how likely a request meets a fault")
    parser.add_argument("--seed", metavar="S", help="of the faults")
    parser.add_argument("--bind", default="127.0.0.1:8471", metavar="H:P")
    parser.add_argument("--listener", type=int, metavar="FD", help="a socket that listens already")
    parser.add_argument("--owner", type=int, metavar="PID", help="the parent that it must not outlive")
    arguments = parser.parse_args(argv)
    if arguments.owner is not None:
        kernel.die_with_parent(arguments.owner)
    given = {"retention": arguments.retention, "delay": arguments.delay, "faults": arguments.faults}
    behaviour = replace(MODES[arguments.mode], **{name: value for name, value in given.items() if value is not None})
    dice = Random(arguments.seed)  # noqa: S311  a choice, not a secret
    host, _, port = arguments.bind.rpartition(":")
    fd = arguments.listener
    listener = socket.create_server((host, int(port))) if fd is None else socket.socket(fileno=fd)
    with Book(arguments.book) as book, Server(listener, Teller(book, behaviour, dice), behaviour, dice) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
