"""A worker's statement about its own slot, which is looked for first where it was last seen."""

from __future__ import annotations

from ..db import Connection, Row
from ..model import Slot
from ..parameters import Value
from ..sql import Statement


def run(connection: Connection, statement: Statement, slot: Slot, **parameters: Value) -> Row:
    """The one row that it answers, of which the first value is whether the slot is still this worker's.

    A slot that was not found may only have moved: by VACUUM FULL, or written by somebody for whom the statement has
    waited. Nothing was done then, and the same is asked once more by its id.
    """
    answer = connection.run(statement, slot=slot.id, token=slot.token, spot=slot.spot, **parameters)[0]
    if not answer[0]:
        answer = connection.run(statement, slot=slot.id, token=slot.token, spot=None, **parameters)[0]
    return answer
