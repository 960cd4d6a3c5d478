"""What a process had done and did not come to count: read from the database, so that its counters can be made whole.

A worker writes down, together with its counters, which tasks its slot named when it last counted (metrics/worker.py).
When it is dead its slot row names what it really held. If they differ, exactly one statement had landed that nobody
has counted: it finished what was named then, and claimed what is named now. What it made of a task is known for good:
a finish that leaves a task open writes an event with its fence, and a terminal state never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from .. import sql
from ..db import Connection
from ..facts import Asking, Ended, Missed, Reconciled
from ..states import State

_FINISHED = sql.statement("finished_under")
_CLAIMED = sql.statement("claimed_under")
_RECONCILED = sql.statement("reconciled_as")

Named = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Counted:
    """Up to where a worker's counters go. `names`: what its slot named then, each with its fence.

    `held` False: their finish had been refused, and will not land any more. `asking`: a lookup that was being settled.
    """

    names: tuple[Named, ...] = ()
    held: bool = True
    asking: Asking | None = None


def missed(connection: Connection, named: Sequence[Named], counted: Counted) -> Missed:
    """What a dead worker did and did not count. `named` is what its slot, which has ended, names."""
    ended: Sequence[Ended] = ()
    won: Sequence[tuple[str, float | None]] = ()
    if set(named) != set(counted.names):
        before, now = set(counted.names) - set(named), set(named) - set(counted.names)
        ended = finished_under(connection, before) if counted.held else ()
        won = _claimed_under(connection, now)
    asking = counted.asking
    return Missed(ended, won, None if asking is None else reconciled_as(connection, asking))


def finished_under(connection: Connection, tasks: Collection[Named]) -> list[Ended]:
    """What the finishes under these fences made of these tasks; those that did not land are left out."""
    if not tasks:
        return []
    rows = connection.run(_FINISHED, ids=[id for id, _ in tasks], fences=[fence for _, fence in tasks])
    return [Ended(kind, State(state), cause) for kind, state, cause in rows]


def reconciled_as(connection: Connection, asking: Asking) -> Reconciled | None:
    """What the lookup of this number made of the task; None when it has written nothing."""
    rows = connection.run(_RECONCILED, id=asking.task, fence=asking.fence, number=asking.number)
    if not rows:
        return None
    kind, outcome, state = rows[0]
    return Reconciled(kind, asking.provider, outcome, state and State(state))


def _claimed_under(connection: Connection, tasks: Collection[Named]) -> list[tuple[str, float | None]]:
    """Kind, and seconds waited where that can still be known, of tasks that were claimed under these fences."""
    if not tasks:
        return []
    rows = connection.run(_CLAIMED, ids=[id for id, _ in tasks], fences=[fence for _, fence in tasks])
    return [(kind, waited) for kind, waited in rows]
