"""Cancel: at once for what has not begun, a request for what has."""

from __future__ import annotations

from uuid import UUID

from .. import sql
from ..db import Connection
from ..states import State

_CANCEL = sql.statement("cancel")


def cancel(connection: Connection, id: UUID) -> State | None:
    """Cancel a queued task, or note the request on a running or unknown one. Repeatable.

    Returns the state afterwards; None when the task is terminal or does not exist, and nothing was changed.
    """
    rows = connection.run(_CANCEL, id=id)
    return State(rows[0][0]) if rows else None
