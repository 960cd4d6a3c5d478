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

import msgspec

from .. import sql
from ..db import Backend, Connection, Row
from ..model import Claimed, Outcome, Place, Refusal, Slot, Step, Wanted
from ..parameters import Value
from ..states import TERMINAL, State
from . import account, offer, own, tell

_STEP = sql.statement("finish_and_claim")
_WHY = sql.statement("why_refused")
_TAKE_OVER = sql.statement("slot_take_over")
_CLAIMED = sql.statement("claimed_task")
_END_BACKEND = sql.statement("end_backend")
NOWHERE = Wanted((), ())
_read = msgspec.json.Decoder(Claimed).decode


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
    answer = own.run(
        connection,
        _STEP,
        slot,
        next_token=slot.following,
        id=task.id if task else None,
        fence=task.fence if task else None,
        outcome=outcome.state if outcome else None,
        result=outcome.result if outcome else None,
        reason=outcome.reason if outcome else None,
        **where(wanted.places),
        **offer.of(wanted.kinds).named,
    )
    mine, trusted, finished, picked, conflict, spot, found = answer
    asked = bool(wanted.places)
    if not mine:
        return tell.one(Step(slot, refused=Refusal.SLOT_ENDED), task, (), asked)
    if task is not None and finished is None:
        return tell.one(Step(slot, refused=why_refused(connection, task), trusted=trusted), task, (), asked)
    claimed = None if found is None else _read(found)
    stale = picked and claimed is None
    step = Step(slot.next(spot), finished and State(finished), None, claimed, stale, trusted, conflict)
    return tell.one(step, task, (), asked)


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


def settle(
    connection: Connection, slot: Slot, done: Sequence[Claimed], kept: Sequence[Claimed], *old: Backend | None
) -> Settlement:
    """Find out, on a new connection, what a finish-and-claim in doubt did to what was `done` and `kept`.

    First the slot is taken over: its row lock waits for the old session or ends it, and the new token makes a late
    copy of the lost statement harmless. Only after that commit is it judged, by what the slot names: still all that
    was to be finished (nothing happened), or not (the finish landed). Not by the token: this settling can itself be
    in doubt, and is then run again. `old` are the sessions of the lost statement and of earlier settlings.

    A slot with a token that this worker never made for it is one of the past, on a standby that was promoted without
    the last commits: what it names was begun long ago, and must not be begun again. The worker must exit.
    """
    after = Slot(slot.id, slot.taken_over)
    rows = _take_over(connection, slot, [backend for backend in old if backend is not None])
    if not rows or rows[0][0]:
        return Settlement(None)
    named = set(zip(rows[0][1], rows[0][2], strict=True))
    finishing = {(task.id, task.fence) for task in done}
    if finishing and finishing <= named:
        return Settlement(after)
    new = named - {(task.id, task.fence) for task in kept}
    # What a refused finish left in the slot is not this worker's, and is not read here.
    found = [_claimed(connection, after, id, fence) for id, fence in new]
    claimed = sorted((task for task in found if task is not None), key=lambda t: (t.priority, t.run_at, t.id))
    ended = account.finished_under(connection, finishing - named)
    return tell.read(Settlement(after, bool(finishing or claimed), tuple(claimed)), kept, ended)


def _take_over(connection: Connection, slot: Slot, old: Sequence[Backend]) -> list[Row]:
    for backend in old:
        # The lost statement may still run there. Ended first, it can neither commit later nor make us wait.
        connection.run(_END_BACKEND, pid=backend.pid, started=backend.started)
    tokens = [slot.token, slot.following, slot.taken_over]
    return connection.run(_TAKE_OVER, slot=slot.id, tokens=tokens, next_token=slot.taken_over)


def _claimed(connection: Connection, slot: Slot, task: UUID, fence: int) -> Claimed | None:
    rows = connection.run(_CLAIMED, slot=slot.id, id=task, fence=fence)
    return _read(rows[0][0]) if rows else None
