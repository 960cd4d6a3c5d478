"""One HTTP call to a pool, and what came of it. Never raises for what a killed server does."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds; a request's own budget at the server is 2.
_TIMEOUT = 3.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `status` None: none came that was whole."""

    start: float
    end: float
    status: int | None = None
    body: Any = None
    etag: str | None = None

    @property
    def problem(self) -> str | None:
        """The name of the problem, None where there is none."""
        if self.status is None or self.status < 400 or not isinstance(self.body, dict):
            return None
        return str(self.body.get("type", "")).rpartition(":")[2]


def call(port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}) -> Answer:
    """One call on a connection of its own."""
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, path, sent, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read()
        found = json.loads(text) if text else None
        return Answer(start, time.monotonic(), answer.status, found, answer.getheader("ETag"))
    except (OSError, http.client.HTTPException, ValueError):
        return Answer(start, time.monotonic())
    finally:
        connection.close()
