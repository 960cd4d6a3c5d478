"""The supervisor: one thread, no user code, one screen of verbs.

It opens the pool lock, forks the api children (so that /livez answers whatever the database does), becomes an
incarnation, recovers what the previous pool left, and only then forks workers. From then on it goes round: hear
signals, notice exits, settle them, renew the lease, promote due tasks, keep the seats taken, and sleep until
something happens.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

from ..metrics.memory import MetricsMemory
from ..metrics.supervisor import SupervisorCounter
from ..runtime import events
from ..runtime.blackbox import Header, PoolMemory
from ..runtime.errors import SchemaMismatch
from ..runtime.facts import LeaseLost
from ..runtime.store import pool
from . import kernel
from .apis import Apis
from .figures import Figures
from .hearing import Hearing
from .incarnation import Incarnation
from .link import Link
from .notify import Notify
from .output import Output
from .pool_lock import PoolLock
from .recovery import Recovery
from .resolver import Resolver
from .settings import ApiMain, PoolSettings
from .shared import Shared
from .signals import Signals
from .stopping import Stopping
from .watch import Watch
from .workers import Workers

PROMOTE_EVERY = 0.5


class Supervisor:
    """A pool of workers on this host and the api children beside it."""

    def __init__(
        self,
        settings: PoolSettings,
        listener: socket.socket,
        api: ApiMain,
        output: Output,
        tell: Callable[[str], None],
    ) -> None:
        """`output` is what the log writes to, `tell` how a line for people gets there."""
        self._settings = settings
        self._output = output
        self._tell = tell
        self._lock = PoolLock(settings.runtime_dir / f"{settings.name}.pool")
        # One seat more than workers, for reloading.
        metrics = MetricsMemory(settings.workers + 1, settings.api_processes)
        self._shared = Shared(PoolMemory(settings.workers + 1), metrics, self._lock.fd)
        self._counter = SupervisorCounter(metrics)
        self._figures = Figures(settings.queues, metrics)
        events.count(self._counter)
        self._resolver = Resolver(settings.database.dsn)
        self._link = Link(settings.database, f"deadsure supervisor {settings.name}", self._resolver)
        self._recovery = Recovery()
        self._workers = Workers(settings, self._shared)
        self._apis = Apis(settings.api_processes, api, listener, self._shared)
        self._incarnation = self._new_incarnation()
        self._former: Incarnation | None = None
        self._hearing = Hearing(self._link, self._shared.wake, lambda: self._incarnation)
        self._first = True
        self._ever_ready = False
        self._promote_at = 0.0
        self._stopping = Stopping(settings.drain_timeout)
        self._notify = Notify(settings.notify_socket, settings.watchdog)

    def run(self) -> int:
        """Supervise until told to stop. Returns 0 when everything is settled, 1 when a recovery is not committed.

        Raises SchemaMismatch when the database has another version's schema; nothing was claimed then.
        """
        kernel.adopt_orphans()
        self._signals = Signals()
        self._watch = Watch(self._signals.fd, self._shared.report)
        try:
            while not self._stopping.over(self._unsettled):
                self._go_round()
            return self._close()
        except SchemaMismatch:
            self._close()
            raise

    def _go_round(self) -> None:
        began = time.monotonic()
        self._hear_signals()
        self._notice_exits()
        self._resolver.keep()
        self._settle()
        self._apis.keep(self._watch)
        self._take_part()
        self._promote()
        self._keep_workers()
        self._tell_pool()
        self._read_figures()
        self._counter.round(time.monotonic() - began, len(self._recovery), self._output.dropped)
        if self._watch.sleep_until(self._next_due(), self._hearing.descriptor):
            self._hearing.listen()

    # --- the verbs

    def _hear_signals(self) -> None:
        for number in self._signals.arrived():
            if number == signal.SIGHUP:
                self._reload()
            elif self._stopping.told():
                self._notify.once("STOPPING=1")
                self._workers.ask_to_drain()
        if self._stopping.out_of_patience:
            self._workers.kill("shutdown")

    def _reload(self) -> None:
        if self._incarnation.begun and not self._stopping.told_to:
            self._workers.reload()

    def _notice_exits(self) -> None:
        for death in self._workers.notice_exits(self._watch):
            self._recovery.add(death)
        self._apis.notice_exits(self._watch)

    def _settle(self) -> None:
        if self._recovery.settle(self._link, self._workers.pids | self._apis.pids | self._resolver.pids):
            self._hearing.announce()

    def _take_part(self) -> None:
        """Be an incarnation with a valid lease; become one when there is none and nothing of a former one is left."""
        if self._incarnation.begun:
            self._link.trusted_until = self._incarnation.lease.trusted_until
            if self._incarnation.renew_if_due(self._workers.request_cancel, self._recovery.settle_again):
                if self._incarnation.sweep_if_due():
                    self._hearing.announce()
            else:
                self._forsake()
        elif not self._stopping.told_to and not self._unsettled:
            if self._former is not None and self._former.end():
                self._former = None
            self._incarnation.begin(inherit=self._first)
            self._first = self._first and not self._incarnation.begun
            self._share_new_lock()

    def _share_new_lock(self) -> None:
        """The api children were forked before the lock was taken; they share it unless it is another file now."""
        if self._lock.replaced:
            self._lock.replaced = False
            self._apis.restart()

    def _forsake(self) -> None:
        """The lease is lost: nobody of ours may go on. Kill, settle by exit proof, come back as a new incarnation."""
        events.emit("the lease is lost; killing the workers and starting anew", incarnation=str(self._incarnation.id))
        events.note(LeaseLost())
        self._workers.kill("lease_expired")
        self._former, self._incarnation = self._incarnation, self._new_incarnation()
        self._link.trusted_until = 0

    def _promote(self) -> None:
        if self._incarnation.begun and time.monotonic() >= self._promote_at:
            self._promote_at = time.monotonic() + PROMOTE_EVERY
            if self._link.try_call(pool.promote):
                self._hearing.announce()

    def _keep_workers(self) -> None:
        if self._incarnation.begun and not self._stopping.told_to:
            if self._workers.go_on_reloading():
                self._apis.restart()
            self._workers.keep(self._watch, self._incarnation.id)
        self._workers.kill_overdue()
        self._ever_ready = self._workers.notice_ready() or self._ever_ready

    def _tell_pool(self) -> None:
        trusted_until = self._incarnation.lease.trusted_until if self._incarnation.begun else 0
        told_to_stop = self._stopping.told_to
        announce_as = self._incarnation.announce_as
        header = Header(self._incarnation.begun, self._ever_ready, told_to_stop, trusted_until, announce_as)
        self._shared.memory.write_header(header)
        if self._ever_ready:
            self._notify.once("READY=1")
        self._notify.alive()

    def _read_figures(self) -> None:
        """For the metrics: last in the round, and never in the way of a death that is to be settled."""
        if self._incarnation.begun and not len(self._recovery):
            self._figures.read_if_due(self._link)

    # --- what they need

    @property
    def _unsettled(self) -> bool:
        """Whether a worker lives, or a death is not settled."""
        return len(self._recovery) > 0 or self._workers.alive > 0

    def _new_incarnation(self) -> Incarnation:
        return Incarnation(self._settings, self._lock, self._link, self._tell)

    def _next_due(self) -> float:
        now = time.monotonic()
        due = [now + 1.0, *self._stopping.due, *self._notify.due]
        if self._incarnation.begun:
            due += [self._promote_at, self._incarnation.renew_at, self._figures.due]
        elif not self._stopping.told_to:
            due.append(now + 0.05)
        due += self._recovery.due(self._link)
        later = [*self._workers.due, *self._apis.retry_at, *self._resolver.due, self._hearing.due]
        return min(due + [at for at in later if at > now])

    def _close(self) -> int:
        settled = not self._unsettled and self._incarnation.end()
        if settled:
            self._hearing.announce()  # what the workers gave back is for others
        self._apis.stop(self._watch, time.monotonic() + self._stopping.grace)
        self._link.close()
        self._resolver.close()
        self._signals.close()
        events.emit("stopped", settled=settled)
        return 0 if settled else 1
