"""A small HTTP server in a thread, to stand for somebody else's service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Unwell(BaseHTTPRequestHandler):
    """It answers 500 to everything."""

    def do_POST(self) -> None:
        self.body()
        self.answer(500, {})

    def do_GET(self) -> None:
        self.answer(500, {})

    def body(self) -> str:
        return self.rfile.read(int(self.headers["Content-Length"])).decode()

    def answer(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Its port. Afterwards nobody listens there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
