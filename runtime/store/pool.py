"""A pool in the database: incarnations with their lease, slots, kinds, the promotion of due tasks, and what pools tell
each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from .. import sql
from ..db import Connection
from ..model import Kind, LockIdentity, Slot

_REGISTER = sql.statement("register_incarnation")
_RENEW = sql.statement("renew_lease")
_LEFT = sql.statement("lease_left")
_LOCK = sql.statement("lock_incarnation")
_END = sql.statement("end_incarnation")
_SLOT = sql.statement("register_slot")
_KIND = sql.statement("register_kind")
_CANCELS = sql.statement("cancel_requests")
_OPEN_SLOTS = sql.statement("slots_of")
_COUNT = sql.statement("count_waiting")
_PROMOTE = sql.statement("promote")
_LISTEN = sql.statement("listen")
_ANNOUNCE = sql.statement("announce")
_HEAR = sql.statement("hear")


class Renewal(NamedTuple):
    """The lease was prolonged. `others`: another incarnation on this database has a valid lease too."""

    others: bool


def register_incarnation(
    connection: Connection,
    incarnation: UUID,
    pool: str,
    token: int,
    lease: float,
    lock: LockIdentity,
    host: str,
    pid: int,
) -> None:
    """Note this boot of the supervisor, with a lease of `lease` seconds by the database's clock. May be repeated."""
    connection.run(
        _REGISTER,
        incarnation=incarnation,
        pool=pool,
        token=token,
        lease=lease,
        lock_id=lock.id,
        lock_device=lock.device,
        lock_inode=lock.inode,
        boot_id=lock.boot_id,
        host=host,
        pid=pid,
    )


def renew(
    connection: Connection, incarnation: UUID, tokens: Iterable[int], next_token: int, lease: float
) -> Renewal | None:
    """Prolong the lease if it shows one of `tokens`. None: refused, this incarnation has ended or was cloned."""
    rows = connection.run(_RENEW, incarnation=incarnation, tokens=list(tokens), next_token=next_token, lease=lease)
    return Renewal(rows[0][0]) if rows else None


def lease_left(connection: Connection, pool: str, lock: LockIdentity) -> float | None:
    """Seconds until the last lease under this lock file is over, negative afterwards; None when none is open."""
    found: float | None = connection.run(_LEFT, pool=pool, lock_id=lock.id)[0][0]
    return found


def end_incarnation(connection: Connection, incarnation: UUID) -> bool:
    """Close the book after an orderly stop. False: it had ended, or one of its slots has not."""
    with connection.transaction():
        connection.run(_LOCK, incarnation=incarnation)
        return bool(connection.run(_END, incarnation=incarnation))


def register_slot(connection: Connection, slot: Slot, incarnation: UUID, number: int) -> bool:
    """Insert a worker's slot row; may be repeated. False: the incarnation has ended and the worker must exit."""
    return bool(connection.run(_SLOT, slot=slot.id, incarnation=incarnation, number=number, token=slot.token))


def register_kinds(connection: Connection, kinds: Sequence[Kind]) -> None:
    """Tell the database what this worker can run, so that every door of submit knows it. May be repeated."""
    for kind in sorted(kinds, key=lambda k: k.name):
        connection.run(
            _KIND,
            kind=kind.name,
            on_death=kind.on_death,
            provider=kind.provider,
            contract=json.dumps(kind.contract) if kind.contract is not None else None,
            max_attempts=kind.max_attempts,
            timeout=kind.timeout,
            queue=kind.queue,
            priority=kind.priority,
        )


def cancel_requests(connection: Connection, incarnation: UUID) -> list[tuple[UUID, int]]:
    """The attempts (task, fence) that run under this incarnation and that somebody asked to cancel."""
    return [(row[0], row[1]) for row in connection.run(_CANCELS, incarnation=incarnation)]


def open_slots(connection: Connection, incarnation: UUID) -> list[UUID]:
    """The slots of this incarnation that have not ended."""
    return [row[0] for row in connection.run(_OPEN_SLOTS, incarnations=[incarnation])]


def count_waiting(connection: Connection, queues: Sequence[str]) -> int:
    """How many tasks are queued in these queues or scheduled for later."""
    return int(connection.run(_COUNT, queues=queues)[0][0])


def promote(connection: Connection) -> int:
    """Move tasks whose time has come to `ready`; at most 1,000 a call. Returns how many moved."""
    return int(connection.run(_PROMOTE)[0][0])


def listen(connection: Connection) -> None:
    """Have this session hear what is announced; `connection.heard` has it."""
    connection.run(_LISTEN)


def announce(connection: Connection, incarnation: UUID) -> None:
    """Tell the supervisors of all hosts that there may be work. A hint: send it after the commit, and rarely."""
    connection.run(_ANNOUNCE, sender=str(incarnation))


def hear(connection: Connection) -> None:
    """Have the driver read what came in since the last answer."""
    connection.run(_HEAR)
