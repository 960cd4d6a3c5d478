"""A proxy before PostgreSQL that can lose the server's answers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Swallow:
    """Listens on `port` and forwards to the server; the connection whose answer was lost is then cut.

    `swallowed` is released once for each answer that was lost: its statement has then been carried out.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._times = 0
        self.swallowed = threading.Semaphore(0)
        self._marker = b""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def lose_answer_to(self, marker: bytes, times: int = 1) -> None:
        """Lose the answer to the next statement whose parameters hold `marker`, `times` times."""
        self._marker = marker
        self._times = times

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            lost = threading.Event()
            back = threading.Thread(target=self._back, args=(server, client, lost), daemon=True)
            back.start()
            with suppress(OSError):
                while data := client.recv(65536):
                    if self._times and self._marker in data:
                        self._times -= 1
                        lost.set()
                    server.sendall(data)
            _cut(server)
            back.join()

    def _back(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if lost.is_set():
                    # The server has answered, so the statement is carried out; nobody hears of it.
                    self.swallowed.release()
                    break
                client.sendall(data)
        _cut(client)
        _cut(server)


def _cut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
