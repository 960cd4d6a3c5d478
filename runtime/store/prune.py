"""Prune: removing what has been over for a long time, in small transactions of their own.

Safe beside a pool, beside another prune, and when it is killed: a removal takes only rows that nobody holds and that
never change again, and each task goes with all its parts or not at all. A row that the database will not let go,
because a table of yours refers to it, is found by halving its page: it stays, and all others go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from .. import sql
from ..db import Connection
from ..errors import StatementRefused
from ..parameters import Value

_HORIZON = sql.statement("prune_horizon")
_ALLOW = sql.statement("prune_allow")
_TASKS_PAGE = sql.statement("prune_page")
_TASKS = sql.statement("prune_tasks")
_SLOTS_PAGE = sql.statement("prune_slots_page")
_SLOTS = sql.statement("prune_slots")
_INCARNATIONS_PAGE = sql.statement("prune_incarnations_page")
_INCARNATIONS = sql.statement("prune_incarnations")

#: How many rows a page looks at, and so the most that one transaction removes.
PAGE = 500
_BEFORE_ALL = UUID(int=0)
_BEHIND_ALL = UUID(int=2**128 - 1)
#: What may be due to single rows: somebody waits or takes too long (query_canceled, lock_not_available, deadlock), a
#: trigger of the user's raises, and, as a class, a constraint.
_OF_SOME_ROW = ("57014", "55P03", "40P01", "P0001")
_CONSTRAINT = "23"


@dataclass(frozen=True, slots=True)
class Horizon:
    """`at`: what finished before it may go. `below`: the ids made up to then. `slots_at`: the same for slots."""

    at: datetime
    below: UUID
    slots_at: datetime


@dataclass(frozen=True, slots=True)
class Kept:
    """A task that the database did not let go, and what it said."""

    id: UUID
    why: str


def horizon(connection: Connection, days: float) -> Horizon:
    """What is older than so many days, by the database's clock."""
    return Horizon(*connection.run(_HORIZON, days=days)[0])


def old_tasks(connection: Connection, horizon: Horizon) -> Iterator[list[UUID]]:
    """The tasks that may go, a page at a time. Changes nothing."""
    return _pages(connection, _TASKS_PAGE, horizon.below, at=horizon.at, below=horizon.below)


def old_slots(connection: Connection, horizon: Horizon) -> Iterator[list[UUID]]:
    """Likewise the slots."""
    return _pages(connection, _SLOTS_PAGE, _BEHIND_ALL, at=horizon.slots_at)


def old_incarnations(connection: Connection, horizon: Horizon) -> Iterator[list[UUID]]:
    """Likewise the incarnations."""
    return _pages(connection, _INCARNATIONS_PAGE, _BEHIND_ALL, at=horizon.slots_at)


def remove_tasks(connection: Connection, horizon: Horizon, ids: Sequence[UUID], keep: Callable[[Kept], None]) -> int:
    """Remove these tasks with all their parts, and tell `keep` of each that the database would not let go.

    Returns how many went. One that somebody holds, itself or its row in ready or scheduled, or has removed, is passed
    over. Raises StoreError for what concerns no single row; what was removed before stays removed.
    """
    if not ids:
        return 0
    try:
        with connection.transaction():
            connection.run(_ALLOW)
            return int(connection.run(_TASKS, ids=ids, at=horizon.at)[0][0])
    except StatementRefused as error:
        if error.sqlstate not in _OF_SOME_ROW and not error.sqlstate.startswith(_CONSTRAINT):
            raise
        if len(ids) == 1:
            keep(Kept(ids[0], str(error)))
            return 0
    half = len(ids) // 2
    return sum(remove_tasks(connection, horizon, part, keep) for part in (ids[:half], ids[half:]))


def remove_slots(connection: Connection, ids: Sequence[UUID]) -> int:
    """Remove these ended slots. Returns how many went."""
    return int(connection.run(_SLOTS, ids=ids)[0][0])


def remove_incarnations(connection: Connection, ids: Sequence[UUID]) -> int:
    """Remove these ended incarnations, once their slots are gone. Returns how many went."""
    return int(connection.run(_INCARNATIONS, ids=ids)[0][0])


def _pages(connection: Connection, page: sql.Statement, end: UUID, **bounds: Value) -> Iterator[list[UUID]]:
    """Of each page up to the id `end`, those that may go. A page that is not full is the last."""
    after, looked_at = _BEFORE_ALL, PAGE
    while looked_at == PAGE and after < end:
        rows = connection.run(page, after=after, scan=PAGE, **bounds)
        looked_at = len(rows)
        if rows:
            after = rows[-1][0]
        if old := [id for id, may_go in rows if may_go]:
            yield old
