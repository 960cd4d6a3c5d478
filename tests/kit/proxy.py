"""A small TCP proxy in front of PostgreSQL's Unix socket."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes bytes between 127.0.0.1 (or another address) and a Unix socket until it is closed."""

    def __init__(self, target: str, address: str = "127.0.0.1") -> None:
        self._target = target
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it and every connection through it."""
        self._stop.close()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopped:
                    self._end()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._pass(key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self._target)
        except OSError:
            client.close()
            server.close()
            return
        self._selector.register(client, selectors.EVENT_READ, server)
        self._selector.register(server, selectors.EVENT_READ, client)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(65536)
            if data:
                target.sendall(data)
                return
        except OSError:
            pass
        for end in (source, target):
            with suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
