"""Becoming and being an incarnation: the schema, the lock, the lease, and what the previous pool left behind.

`Incarnation.begin` is called again and again until it has all of it, so that a database that is away, or a previous
pool that is still dying, delays the start and never fails it. Nothing is claimed before it returns True.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal
from uuid import UUID, uuid4

from ..runtime import events
from ..runtime.db import Connection
from ..runtime.errors import StatementRefused, StoreError
from ..runtime.facts import Recovered, Renewed, Swept
from ..runtime.model import LeaseProof, LockProof, Settled
from ..runtime.states import State
from ..runtime.store import migrate, pool, recover
from .lease import Lease, boottime
from .link import Link
from .pool_lock import PoolLock
from .recovery import requeued, tell_settled
from .settings import PoolSettings

#: Seconds in which somebody who has just taken the lock may register: no lease under it means nothing before.
SIBLING_GRACE = 3.0
#: Seconds between two attempts while the database answers, but refuses.
PAUSE = 0.5


class Incarnation:
    """This boot of the supervisor, in the database. Made anew when a lease was lost."""

    def __init__(self, settings: PoolSettings, lock: PoolLock, link: Link, report: Callable[[str], None]) -> None:
        self.id: UUID = uuid4()
        self.lease = Lease(self.id, settings.lease)
        self.begun = False
        self._settings = settings
        self._lock = lock
        self._link = link
        self._report = report
        self._registered = False
        self._renew_at = 0.0
        self._not_before = 0.0
        self._tell_waiting_at = 0.0
        self._sweep_at = 0.0
        self._sweeping = recover.Sweeping()
        self._made = time.monotonic()

    def begin(self, *, inherit: bool) -> bool:
        """Take the next steps towards a pool that may work; True once all are committed.

        `inherit` recovers what the previous pool under this lock left; only for the first incarnation of a process,
        because only taking the lock proves that pool's processes gone. Raises SchemaMismatch.
        """
        if time.monotonic() < self._not_before:
            return False
        try:
            self._link.call(migrate.check)
            if not self._take_lock():
                return False
            self._register()
            if inherit:
                self._recover_previous()
        except StatementRefused as error:
            events.emit("the pool cannot start yet", error=str(error))
            self._not_before = time.monotonic() + PAUSE
            return False
        except StoreError:  # the link has told, and it will be tried again
            return False
        self.begun = True
        return True

    def renew_if_due(
        self, request_cancel: Callable[[list[tuple[UUID, int]]], None], settle_again: Callable[[list[UUID]], None]
    ) -> bool:
        """Renew the lease when it is time. False: it is lost, by refusal or because it could not be renewed.

        With it come the cancel requests that other hosts have made; `request_cancel` shows them to the workers. And
        the slots that are open, as the database knows; `settle_again` looks for those of the dead among them.
        """
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + self._settings.renew_every
            outcome: Literal["renewed", "refused", "failed"] = "failed"
            try:
                if not self._link.call(self.lease.renew):
                    outcome = "refused"
                    events.emit("the lease was refused", incarnation=str(self.id))
                    return False
                outcome = "renewed"
                request_cancel(self._link.call(lambda connection: pool.cancel_requests(connection, self.id)))
                settle_again(self._link.call(lambda connection: pool.open_slots(connection, self.id)))
            except StoreError as error:
                self._renew_at = time.monotonic() + min(1.0, self._settings.renew_every)
                events.emit("the lease was not renewed", error=str(error))
            finally:
                events.note(Renewed(outcome))
        return self.lease.trusted

    @property
    def renew_at(self) -> float:
        """When (time.monotonic) the next renewal is due."""
        return self._renew_at

    @property
    def announce_as(self) -> UUID | None:
        """Its id while another incarnation may have idle workers; None when nobody else would hear it."""
        return self.id if self.begun and self.lease.others else None

    def end(self) -> bool:
        """Close the book; every slot has ended by then. True when the database has it."""
        if not self._registered:
            return True
        return self._link.try_call(lambda connection: pool.end_incarnation(connection, self.id) or True) is not None

    def sweep_if_due(self) -> bool:
        """End the incarnations that are lost by the database's clock, and settle what they held. True: some of it is
        queued again.
        """
        if time.monotonic() < self._sweep_at:
            return False
        self._sweep_at = time.monotonic() + self._settings.renew_every
        swept = self._link.try_call(lambda connection: self._sweeping.sweep(connection, self.id))
        for incarnation in swept.incarnations if swept else []:
            events.emit("a lost incarnation was swept", incarnation=str(incarnation))
        if swept:
            tell_settled("a lost worker's task was settled", swept.settled, proof="lease")
            events.note(Swept(len(swept.incarnations)))
            events.note(Recovered("lease", swept.settled, LeaseProof.cause, swept.overdue))
        return swept is not None and requeued(swept.settled)

    def _take_lock(self) -> bool:
        if self._lock.held or self._lock.take():
            return True
        if time.monotonic() >= self._tell_waiting_at:
            self._tell_waiting_at = time.monotonic() + 10
            holders = ", ".join(self._lock.holders()) or "nobody that can be seen from here"
            events.emit(
                "waiting for the previous pool's processes to end",
                lock=str(self._lock.path),
                held_by=holders,
                hint="if another pool of this name runs here, give this one another name ([pool] name)",
            )
        if time.monotonic() < self._made + SIBLING_GRACE:
            return False
        left = self._link.call(lambda c: pool.lease_left(c, self._settings.name, self._lock.identity()))
        if left is not None and left > 0:
            return False
        # Whoever holds it has no lease under it any more, and may hold it for ever. What is lost is swept by lease.
        self._lock.replace()
        events.emit("going on under a new pool lock; the old one is still held", lock=str(self._lock.path))
        return True

    def _register(self) -> None:
        if self._registered:
            return
        started = boottime()

        def register(connection: Connection) -> None:
            pool.register_incarnation(
                connection,
                self.id,
                self._settings.name,
                self.lease.token,
                self._settings.lease,
                self._lock.identity(),
                socket.gethostname(),
                os.getpid(),
            )

        self._link.call(register)
        self.lease.registered(started)
        self._renew_at = time.monotonic() + self._settings.renew_every
        self._registered = True

    def _recover_previous(self) -> None:
        proof = LockProof(self._lock.identity())
        settled = self._link.call(lambda c: recover.recover_pool(c, self._settings.name, self.id, proof))
        events.note(Recovered("pool_lock", settled, proof.cause, time.monotonic() - self._made))
        waiting = self._link.call(lambda c: pool.count_waiting(c, self._settings.queues))
        self._report(_report(settled, waiting))


def _report(settled: list[Settled], waiting: int) -> str:
    """`waiting` counts the queued tasks after the recovery, so the re-queued ones are in it."""
    by_state = Counter(task.state for task in settled)
    canceled = f" canceled={by_state[State.CANCELED]}" if by_state[State.CANCELED] else ""
    return (
        f"recovered previous pool: failed={by_state[State.FAILED]} unknown={by_state[State.UNKNOWN]} "
        f"queued={waiting}{canceled} proof=pool_lock"
    )
