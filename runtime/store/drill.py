"""What a drill leaves in the database, and its removal."""

from __future__ import annotations

from collections.abc import Sequence

from .. import sql
from ..db import Connection

_REMOVE = sql.statement("drill_remove")
_ALLOW = sql.statement("prune_allow")
_REMOVE_DECISIONS = sql.statement("soak_remove_decisions")


def remove(connection: Connection, pool: str, queue: str, kinds: Sequence[str]) -> int:
    """Remove the tasks of these kinds with all their parts, the kinds, and the pool's incarnations. Returns how many
    tasks there were. The pool must have ended. May be repeated.
    """
    return int(connection.run(_REMOVE, pool=pool, queue=queue, kinds=kinds)[0][0])


def remove_decisions(connection: Connection, kinds: Sequence[str]) -> int:
    """Remove what people decided about the tasks of these kinds; before the tasks themselves. Returns how many there
    were.
    """
    with connection.transaction():
        connection.run(_ALLOW)
        return len(connection.run(_REMOVE_DECISIONS, kinds=kinds))
