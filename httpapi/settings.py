"""What the api child is told when it is started. Durations are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..runtime.db import Settings
from .tokens import Token


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """One api child. `bind` is the address as configured: on loopback, without tokens, it decides who may ask.
    `pool` and `workers` are the pool's name and size, for the metrics.

    `app` is the user's application as MODULE:ATTRIBUTE; with it payloads are checked against the handlers'
    annotations before they are stored.
    """

    database: Settings
    bind: str = "127.0.0.1:8470"
    pool: str = "default"
    workers: int = 1
    app: str | None = None
    app_dir: Path = Path()
    tokens: tuple[Token, ...] = ()
    request_budget: float = 2.0
    db_connections: int = 4
    max_body: int = 1024 * 1024
    body_timeout: float = 10.0
    max_waiters: int = 256
    drain_timeout: float = 5.0
