"""Facts about the server, for people. Nothing is decided by them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .. import sql
from ..db import Connection

_FACTS = sql.statement("server_facts")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server, and who we are to it."""

    version: str
    clock: datetime
    role: str
    superuser: bool


def server_facts(connection: Connection) -> ServerFacts:
    """Ask the server."""
    return ServerFacts(*connection.run(_FACTS)[0])
