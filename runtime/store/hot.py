"""Claim and finish: the hot path, one statement in three uses.

`finish_and_claim` is what a busy worker sends: one round trip and one commit for a whole task. `claim` is the same
statement with nothing in hand, `finish` is the same with nowhere to look for more. All three raise

- StatementRefused: surely not done, the slot still carries its token;
- InDoubt: `settle` says on a new connection what happened. Never send a statement again before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from .. import sql
from ..db import Backend, Connection, Row
from ..ids import new_token
from ..model import Claimed, Outcome, Place, Refusal, Slot, Step, Wanted
from ..parameters import Value
from ..states import TERMINAL, State

_STEP = sql.statement("finish_and_claim")
_WHY = sql.statement("why_refused")
_TAKE_OVER = sql.statement("slot_take_over")
_CLAIMED = sql.statement("claimed_task")
_END_BACKEND = sql.statement("end_backend")
NOWHERE = Wanted((), ())


def claim(connection: Connection, slot: Slot, wanted: Wanted) -> Step:
    """Take the next task, or none."""
    return finish_and_claim(connection, slot, None, None, wanted)


def finish(connection: Connection, slot: Slot, task: Claimed, outcome: Outcome) -> Step:
    """Commit state and result of a task together, and claim nothing."""
    return finish_and_claim(connection, slot, task, outcome, NOWHERE)


def finish_and_claim(
    connection: Connection, slot: Slot, task: Claimed | None, outcome: Outcome | None, wanted: Wanted
) -> Step:
    """Finish the task in hand and take the next one, both or neither refused (invariants 1 and 2).

    A refused finish claims nothing; `Step.refused` says why.
    """
    after = Slot(slot.id, new_token())
    rows = connection.run(
        _STEP,
        slot=slot.id,
        token=slot.token,
        next_token=after.token,
        id=task.id if task else None,
        fence=task.fence if task else None,
        outcome=outcome.state if outcome else None,
        result=outcome.result if outcome else None,
        reason=outcome.reason if outcome else None,
        **where(wanted.places),
        kinds=[kind.name for kind in wanted.kinds],
        on_deaths=[kind.on_death for kind in wanted.kinds],
    )
    mine, trusted, finished, picked, conflict, *found = rows[0]
    if not mine:
        return Step(slot, refused=Refusal.SLOT_ENDED)
    if task is not None and finished is None:
        return Step(slot, refused=why_refused(connection, task), trusted=trusted)
    claimed = None if found[0] is None else Claimed(*found)
    stale = picked and claimed is None
    return Step(after, finished and State(finished), None, claimed, stale, trusted, conflict)


def where(places: Sequence[Place]) -> dict[str, Value]:
    """The parameters that name these places."""
    return {
        "queues": [place.queue for place in places],
        "priorities": [place.priority for place in places],
        "run_ats": [place.run_at for place in places],
        "ids": [place.id for place in places],
    }


def why_refused(connection: Connection, task: Claimed) -> Refusal:
    """Read why a finish changed nothing. For people: nothing is decided by it."""
    rows = connection.run(_WHY, id=task.id)
    if not rows:
        return Refusal.NO_SUCH_TASK
    return Refusal.ALREADY_FINISHED if State(rows[0][0]) in TERMINAL else Refusal.NOT_YOURS


@dataclass(frozen=True, slots=True)
class Settlement:
    """What really happened to a statement whose answer was lost.

    `happened` False: nothing of it, send it again with `slot`. True: the finish is committed, and `claimed` is what
    was claimed with it and has not started. `slot` None: the slot has ended, the worker must exit.
    """

    slot: Slot | None
    happened: bool = False
    claimed: tuple[Claimed, ...] = ()


def settle(connection: Connection, slot: Slot, held: Sequence[Claimed], old: Backend | None) -> Settlement:
    """Find out, on a new connection, what a finish-and-claim in doubt did. `held` is what the slot named before.

    First the slot is taken over: its row lock waits for the old session or ends it, and the new token makes a late
    copy of the lost statement harmless. Only after that commit is it judged, by what the slot names: what was held
    before (nothing happened) or something else (the finish landed). Not by the token: this settling can itself be in
    doubt, and is then simply run again.
    """
    after = Slot(slot.id, new_token())
    rows = _take_over(connection, after, old)
    if not rows or rows[0][0]:
        return Settlement(None)
    named = set(zip(rows[0][1], rows[0][2], strict=True))
    before = {(task.id, task.fence) for task in held}
    if named == before:
        return Settlement(after)
    found = [_claimed(connection, after, id, fence) for id, fence in named - before]
    claimed = sorted((task for task in found if task is not None), key=lambda t: (t.priority, t.run_at, t.id))
    return Settlement(after, True, tuple(claimed))


def _take_over(connection: Connection, after: Slot, old: Backend | None) -> list[Row]:
    if old is not None:
        # The lost statement may still run there. Ended first, it can neither commit later nor make us wait.
        connection.run(_END_BACKEND, pid=old.pid, started=old.started)
    return connection.run(_TAKE_OVER, slot=after.id, next_token=after.token)


def _claimed(connection: Connection, slot: Slot, task: UUID, fence: int) -> Claimed | None:
    rows = connection.run(_CLAIMED, slot=slot.id, id=task, fence=fence)
    return Claimed(*rows[0]) if rows else None
