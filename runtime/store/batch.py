"""Claim and finish many at once: for kinds that declared that running one twice, even at once, does no harm.

The rules are those of `hot.finish_and_claim`, for each task by itself, and so is what it raises. The slot names every
task that is held; after InDoubt `hot.settle` reads from it what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from .. import sql
from ..db import Connection
from ..model import Claimed, Outcome, Refusal, Slot, Wanted
from ..states import State
from . import offer, own, tell
from .hot import where

_STEP = sql.statement("finish_and_claim_many")
_read = msgspec.json.Decoder(tuple[Claimed, ...]).decode


@dataclass(frozen=True, slots=True)
class Done:
    """A task to be finished with this outcome; without one it was never started, and goes back as it was."""

    task: Claimed
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class ManyStep:
    """What one finish-and-claim of many did. The fields are those of `Step`.

    `finished` holds the new state of each task that was handed in, in that order; None: its finish was refused, and
    nothing was claimed.
    """

    slot: Slot
    finished: tuple[State | None, ...] = ()
    refused: Refusal | None = None
    claimed: tuple[Claimed, ...] = ()
    stale: bool = False
    trusted: bool = True
    conflict: bool = False


def finish_and_claim_many(
    connection: Connection, slot: Slot, done: Sequence[Done], kept: Sequence[Claimed], wanted: Wanted, size: int
) -> ManyStep:
    """Finish or give back what is `done`, hold on to what is `kept`, and claim up to `size` that may run together.

    Only first attempts of kinds with on_death `requeue` and a budget of two or more are claimed together; any other
    task that is at the head is claimed alone.
    """
    outcomes = [entry.outcome for entry in done]
    offered = offer.of(wanted.kinds)
    answer = own.run(
        connection,
        _STEP,
        slot,
        next_token=slot.following,
        done=[entry.task.id for entry in done],
        fences=[entry.task.fence for entry in done],
        outcomes=[outcome.state if outcome else "released" for outcome in outcomes],
        results=[outcome.result if outcome else None for outcome in outcomes],
        reasons=[outcome.reason if outcome else None for outcome in outcomes],
        kept=[task.id for task in kept],
        kept_fences=[task.fence for task in kept],
        batch_kinds=offered.together,
        size=size,
        **where(wanted.places),
        **offered.named,
    )
    mine, trusted, finished, picked, conflict, spot, found = answer
    if not mine:
        return tell.many(ManyStep(slot, refused=Refusal.SLOT_ENDED), done, kept, bool(wanted.places))
    states = tuple(state and State(state) for state in finished)
    claimed = () if found is None else _read(found)
    whole = all(state is not None for state in states)
    after = slot.next(spot) if whole else slot
    step = ManyStep(after, states, None, claimed, picked and not claimed, trusted=trusted, conflict=conflict)
    return tell.many(step, done, kept, bool(wanted.places))
