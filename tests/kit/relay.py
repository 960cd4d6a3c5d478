"""Sockets between clients and a server, all in one thread; what is done with their bytes is a subclass's affair."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from deadsure.runtime.dsn import Host

from .fault_rules import Cut, Session

T = TypeVar("T")
New = Literal["pass", "silent", "refuse"]
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """Listens on `address` and opens a connection to `target` for each of its own, until it is closed.

    `new` is what becomes of the next connections. Only the relay's thread touches sessions; others give orders.
    """

    def __init__(self, target: Host, address: str) -> None:
        self.new: New = "pass"
        self.sessions: set[Session] = set()
        self._target = target
        self._orders: deque[Callable[[], None]] = deque()
        self._listener = socket.create_server((address, 0), backlog=128)
        self.address = address
        self.port: int = self._listener.getsockname()[1]
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it and every connection through it."""
        if not self._closed:
            self.order(self._end)
            self._thread.join(5)
            os.close(self._wake)

    def order(self, what: Callable[[], T]) -> T:
        """Have the thread do this, and return what it said."""
        done = threading.Event()
        said: list[T] = []

        def carry_out() -> None:
            said.append(what())
            done.set()

        self._orders.append(carry_out)
        os.eventfd_write(self._wake, 1)
        assert done.wait(10), "the relay does not answer"
        return said[0]

    # --- what a subclass does

    def from_client(self, session: Session, data: bytes) -> None:
        """These bytes have come; none: the client has gone."""
        raise NotImplementedError

    def from_server(self, session: Session, data: bytes) -> None:
        """These bytes have come; none: the server has gone."""
        raise NotImplementedError

    def due(self) -> float | None:
        """When (time.monotonic) `on_time` is to be called; None: not before something else happens."""
        return None

    def on_time(self) -> None:
        """Its time has come, or something has happened."""

    # --- what it does with sessions

    def connect(self, session: Session) -> bool:
        """Give it a server. False: nobody listens there, and the session has ended."""
        server: socket.socket | None = None
        try:
            if self._target.is_socket:
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target.socket_path)
            else:
                server = socket.create_connection((self._target.name, self._target.port), 5)
                server.settimeout(None)
        except OSError:
            if server is not None:
                server.close()
            self.drop(session)
            return False
        session.server = server
        self._watch(session, server)
        return True

    def cut(self, session: Session, how: Cut) -> None:
        """End both sides, or let it fall silent."""
        self.lose_client(session, how)
        if how != "silent":
            self.drop(session)

    def lose_client(self, session: Session, how: Cut) -> None:
        """The client hears nothing any more; the server does not learn it."""
        if how == "silent":
            session.silent = True
            return
        session.client_gone = True
        if how == "reset" and session.client is not None:
            session.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close_end(session, "client")

    def drop(self, session: Session) -> None:
        """End both sides and forget it."""
        session.client_gone = True
        self.close_end(session, "client")
        self.close_end(session, "server")
        self.sessions.discard(session)

    def close_end(self, session: Session, which: Literal["client", "server"]) -> None:
        """Close one side."""
        end: socket.socket | None = getattr(session, which)
        if end is not None:
            setattr(session, which, None)
            self._selector.unregister(end)
            end.close()

    # --- the thread

    def _run(self) -> None:
        while not self._closed:
            due = self.due()
            for key, _ in self._selector.select(None if due is None else max(0.0, due - time.monotonic())):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wake:
                    self._obey()
                elif key.data in self.sessions:
                    self._read(key.data, key.fileobj)
                if self._closed:
                    return
            self.on_time()

    def _obey(self) -> None:
        os.eventfd_read(self._wake)
        while self._orders:
            self._orders.popleft()()

    def _end(self) -> None:
        self._closed = True
        for session in list(self.sessions):
            self.drop(session)
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = Session(client, silent=self.new == "silent")
        self._watch(session, client)
        if self.new == "refuse":
            self.cut(session, "reset")
        elif not session.silent:
            self.connect(session)

    def _watch(self, session: Session, end: socket.socket) -> None:
        self.sessions.add(session)
        self._selector.register(end, selectors.EVENT_READ, session)

    def _read(self, session: Session, end: Any) -> None:
        try:
            data: bytes = end.recv(262144)
        except OSError:
            data = b""
        if end is session.client:
            self.from_client(session, data)
        elif end is session.server:
            self.from_server(session, data)
