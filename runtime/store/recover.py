"""Recovery: settling what proven-dead workers held. There is no way to call it without a proof (invariant 4).

A recovery is one transaction of at least two statements. The first ends the slots; the second, with a fresh snapshot,
settles what they hold. As one statement it would look for the task in its old snapshot and miss a claim that landed
while it waited for the slot's lock.

It is conditional, so after InDoubt or DatabaseUnavailable it is simply run again: what was settled is not settled
twice. A repeat that finds everything settled answers with what its own first attempt did, as the events have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from .. import sql
from ..db import Connection, Row
from ..facts import Missed
from ..model import ExitProof, LeaseProof, LockProof, Proof, Settled
from ..states import State
from . import account
from .account import Counted

_END_SLOTS = sql.statement("end_slots")
_END_BY_LOCK = sql.statement("end_incarnations_by_lock")
_END_EXPIRED = sql.statement("end_expired_incarnations")
_SLOTS_OF = sql.statement("slots_of")
_SETTLE = sql.statement("settle")
_SWEPT_BY = sql.statement("swept_by")
_SLOTS_ENDED_BY_LOCK = sql.statement("slots_ended_by_lock")
_RECOVERED = sql.statement("recovered")


def recover_worker(connection: Connection, slot: UUID, proof: ExitProof) -> list[Settled]:
    """Settle what one worker held whose exit the kernel has told us."""
    return recover_and_account(connection, slot, proof, Counted())[0]


def recover_and_account(
    connection: Connection, slot: UUID, proof: ExitProof, counted: Counted
) -> tuple[list[Settled], Missed]:
    """As `recover_worker`, and what the worker had done beyond what it had `counted`."""
    with connection.transaction():
        ended = connection.run(_END_SLOTS, slots=[slot])
        named = [each for _, ids, fences in ended for each in zip(ids, fences, strict=True)]
        missed = account.missed(connection, named, counted)
        return _settle(connection, [slot], proof) or _recovered(connection, [slot], proof), missed


def recover_pool(connection: Connection, pool: str, incarnation: UUID, proof: LockProof) -> list[Settled]:
    """Settle what earlier incarnations of this pool held under the lock file that is now ours alone."""
    lock = proof.identity
    with connection.transaction():
        ended = connection.run(
            _END_BY_LOCK,
            pool=pool,
            incarnation=incarnation,
            lock_id=lock.id,
            lock_device=lock.device,
            lock_inode=lock.inode,
            boot_id=lock.boot_id,
        )
        if not ended:
            before = connection.run(_SLOTS_ENDED_BY_LOCK, incarnation=incarnation)
            return _recovered(connection, [row[0] for row in before], proof)
        slots = [row[0] for row in connection.run(_SLOTS_OF, incarnations=[row[0] for row in ended])]
        connection.run(_END_SLOTS, slots=slots)
        return _settle(connection, slots, proof)


def sweep(connection: Connection, myself: UUID) -> tuple[list[UUID], list[Settled]]:
    """End every incarnation but mine whose lease is over by the database's clock, and settle what it held.

    Returns the incarnations that were ended, and their tasks.
    """
    swept = Sweeping().sweep(connection, myself)
    return swept.incarnations, swept.settled


class Sweep(NamedTuple):
    """What a sweep has ended and settled. `overdue`: seconds since the end of the lease that had ended first."""

    incarnations: list[UUID]
    settled: list[Settled]
    overdue: float


class Sweeping:
    """The sweeps of one incarnation. After one whose answer was lost, the next also tells what that one had done."""

    def __init__(self) -> None:
        self._told: set[tuple[UUID, int]] = set()
        self._doubt = False

    def sweep(self, connection: Connection, myself: UUID) -> Sweep:
        """As `recover.sweep`. Raises what the connection raises: then it is to be called again."""
        doubt, self._doubt = self._doubt, True
        swept = _sweep(connection, myself)
        settled = swept.settled
        if doubt:
            settled = _settled(connection.run(_SWEPT_BY, incarnation=myself))
        new = [task for task in settled if (task.id, task.fence) not in self._told]
        self._told.update((task.id, task.fence) for task in new)
        self._doubt = False
        return swept._replace(settled=new)


def _sweep(connection: Connection, myself: UUID) -> Sweep:
    with connection.transaction():
        expired = connection.run(_END_EXPIRED, incarnation=myself)
        if not expired:
            return Sweep([], [], 0.0)
        ended = [row[0] for row in expired]
        slots = [row[0] for row in connection.run(_SLOTS_OF, incarnations=ended)]
        connection.run(_END_SLOTS, slots=slots)
        return Sweep(ended, _settle(connection, slots, LeaseProof(), myself), max(row[1] for row in expired))


def _settle(connection: Connection, slots: Iterable[UUID], proof: Proof, by: UUID | None = None) -> list[Settled]:
    """`by`: the incarnation that settles them, where that does not follow from the proof."""
    exit_proof = proof if isinstance(proof, ExitProof) else None  # the others know no single process
    evidence = exit_proof.evidence if exit_proof else {} if by is None else {"by": str(by)}
    rows = connection.run(
        _SETTLE,
        slots=list(slots),
        reason=proof.reason,
        cause=proof.cause,
        proof=proof.name,
        signal=exit_proof.signal if exit_proof else None,
        phase=exit_proof.phase if exit_proof else None,
        senders_gone=exit_proof is not None and exit_proof.evidence.get("senders_gone", False) is True,
        evidence=json.dumps(evidence),
    )
    return _settled(rows)


def _recovered(connection: Connection, slots: list[UUID], proof: Proof) -> list[Settled]:
    """What an earlier attempt at this recovery settled, if its answer was lost."""
    return _settled(connection.run(_RECOVERED, slots=slots, proof=proof.name))


def _settled(rows: Iterable[Row]) -> list[Settled]:
    return [Settled(id, kind, State(state), fence, attempts) for id, kind, state, fence, attempts in rows]
