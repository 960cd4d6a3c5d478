"""Recovery: settling what proven-dead workers held. There is no way to call it without a proof (invariant 4).

A recovery is one transaction of at least two statements. The first ends the slots; the second, with a fresh snapshot,
settles what they hold. As one statement it would look for the task in its old snapshot and miss a claim that landed
while it waited for the slot's lock.

It is conditional, so after InDoubt or DatabaseUnavailable it is simply run again: what was settled is not settled
twice, and nothing is counted twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID

from .. import sql
from ..db import Connection
from ..model import ExitProof, LeaseProof, LockProof, Proof, Settled
from ..states import State

_END_SLOTS = sql.statement("end_slots")
_END_BY_LOCK = sql.statement("end_incarnations_by_lock")
_END_EXPIRED = sql.statement("end_expired_incarnations")
_SLOTS_OF = sql.statement("slots_of")
_SETTLE = sql.statement("settle")


def recover_worker(connection: Connection, slot: UUID, proof: ExitProof) -> list[Settled]:
    """Settle what one worker held whose exit the kernel has told us."""
    with connection.transaction():
        connection.run(_END_SLOTS, slots=[slot])
        return _settle(connection, [slot], proof)


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
        slots = [row[0] for row in connection.run(_SLOTS_OF, incarnations=[row[0] for row in ended])]
        connection.run(_END_SLOTS, slots=slots)
        return _settle(connection, slots, proof)


def sweep(connection: Connection, myself: UUID) -> tuple[list[UUID], list[Settled]]:
    """End every incarnation but mine whose lease is over by the database's clock, and settle what it held.

    Returns the incarnations that were ended, and their tasks.
    """
    with connection.transaction():
        ended = [row[0] for row in connection.run(_END_EXPIRED, incarnation=myself)]
        if not ended:
            return [], []
        slots = [row[0] for row in connection.run(_SLOTS_OF, incarnations=ended)]
        connection.run(_END_SLOTS, slots=slots)
        return ended, _settle(connection, slots, LeaseProof())


def _settle(connection: Connection, slots: Iterable[UUID], proof: Proof) -> list[Settled]:
    exit_proof = proof if isinstance(proof, ExitProof) else None  # the others know no single process
    rows = connection.run(
        _SETTLE,
        slots=list(slots),
        reason=proof.reason,
        cause=proof.cause,
        proof=proof.name,
        signal=exit_proof.signal if exit_proof else None,
        phase=exit_proof.phase if exit_proof else None,
        senders_gone=exit_proof is not None and exit_proof.evidence.get("senders_gone", False) is True,
        evidence=json.dumps(exit_proof.evidence if exit_proof else {}),
    )
    return [Settled(id, kind, State(state), fence, attempts) for id, kind, state, fence, attempts in rows]
