"""Cancel: at once for what has not begun, a request for what has."""

from __future__ import annotations

from uuid import UUID

from .. import sql
from ..db import Connection
from ..events import note
from ..facts import Canceled
from ..states import State

_CANCEL = sql.statement("cancel")
_CANCELED_BY = sql.statement("canceled_by")


def cancel(connection: Connection, id: UUID, actor: str = "deadsure", request: UUID | None = None) -> State | None:
    """Cancel a queued task, or note the request on a running or unknown one. Repeatable, also after a lost answer.

    Returns the state afterwards; None when nothing was changed: the task is terminal, its cancel had been requested,
    or it does not exist. `actor` is who asked, for the task's events; `request` is the same in every repeat.
    """
    rows = connection.run(_CANCEL, id=id, actor=actor, request=request)
    if not rows and request is not None:
        rows = connection.run(_CANCELED_BY, id=id, request=str(request))
    if not rows:
        return None
    state, kind, was_queued = rows[0]
    if was_queued:
        note(Canceled(request, kind, State(state)))
    return State(state)
