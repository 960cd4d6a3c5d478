"""Figures about the whole database, for the metrics. Each is bounded in time and in the rows it looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from .. import sql
from ..db import Connection

_TIMEOUT = sql.statement("figures_timeout")
_READY = sql.statement("figures_ready")
_SCHEDULED = sql.statement("figures_scheduled")
_HELD = sql.statement("figures_held")
_UNKNOWN = sql.statement("figures_unknown")
_TRANSACTION = sql.statement("figures_transaction")
_DEAD = sql.statement("figures_dead")

#: How many tasks of one queue are counted one by one; beyond it PostgreSQL's statistics say how many there are.
EXACT = 10_000
#: How many scheduled and unknown tasks are looked up one by one.
LOOKED_UP = 1_000


class Figure(NamedTuple):
    """How many, and how old the oldest is, in seconds; None where that means nothing."""

    labels: tuple[str, ...]
    number: int
    oldest: float | None


def queued(connection: Connection, queues: Sequence[str], seconds: float) -> list[Figure]:
    """Tasks that are queued or scheduled, by queue. Raises StatementRefused when one look takes longer than `seconds`,
    as the others do.
    """
    with _bounded(connection, seconds):
        ready = connection.run(_READY, queues=queues, most=EXACT)
        scheduled = connection.run(_SCHEDULED, queues=queues, most=LOOKED_UP)
    return [
        *(Figure((queue, "queued"), number, oldest) for queue, number, oldest in ready),
        *(Figure((queue, "scheduled"), number, None) for queue, number in scheduled),
    ]


def held(connection: Connection, queues: Sequence[str], seconds: float) -> list[Figure]:
    """Tasks that run or are unknown, by queue."""
    with _bounded(connection, seconds):
        rows = connection.run(_HELD, queues=queues, most=LOOKED_UP)
    return [Figure((queue, state), number, oldest) for queue, state, number, oldest in rows]


def unknown(connection: Connection, seconds: float) -> list[Figure]:
    """Unknown tasks by kind and need."""
    with _bounded(connection, seconds):
        rows = connection.run(_UNKNOWN)
    return [Figure((kind, needs), number, oldest) for kind, needs, number, oldest in rows]


def oldest_transaction(connection: Connection, seconds: float) -> float:
    """Age in seconds of the oldest transaction that can hold back vacuum, 0 without one."""
    with _bounded(connection, seconds):
        found: float | None = connection.run(_TRANSACTION)[0][0]
    return found or 0.0


def dead_tuples(connection: Connection, tables: Sequence[str], seconds: float) -> list[Figure]:
    """Dead rows by table."""
    with _bounded(connection, seconds):
        rows = connection.run(_DEAD, tables=tables)
    return [Figure((table,), number, None) for table, number in rows]


@contextmanager
def _bounded(connection: Connection, seconds: float) -> Iterator[None]:
    with connection.transaction():
        connection.run(_TIMEOUT, milliseconds=str(int(seconds * 1000)))
        yield
