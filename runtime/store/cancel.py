"""Cancel: at once for what has not begun, a request for what has."""

from __future__ import annotations

from uuid import UUID

from .. import sql
from ..db import Connection
from ..states import State

_CANCEL = sql.statement("cancel")


def cancel(connection: Connection, id: UUID, actor: str = "deadsure") -> State | None:
    """Cancel a queued task, or note the request on a running or unknown one. Repeatable, also after a lost answer.

    Returns the state afterwards; None when nothing was changed: the task is terminal, its cancel had been requested,
    or it does not exist. `actor` is who asked, for the task's events.
    """
    rows = connection.run(_CANCEL, id=id, actor=actor)
    return State(rows[0][0]) if rows else None
