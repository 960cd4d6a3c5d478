"""The supervisor: one thread, no user code, one screen of verbs.

It binds, opens the pool lock, forks the api child (so that /livez answers whatever the database does), becomes an
incarnation, recovers what the previous pool left, and only then forks workers. From then on it goes round: notice
exits, settle them, renew the lease, promote due tasks, keep the seats taken, sleep until something happens.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from ..runtime import events
from ..runtime.blackbox import Header, PoolMemory
from ..runtime.errors import SchemaMismatch
from ..runtime.model import Cause
from ..runtime.store import pool
from .child import Child, fork
from .incarnation import Incarnation
from .link import Link
from .output import Output, Relay
from .pool_lock import PoolLock
from .recovery import Death, Recovery
from .seats import ApiSeat, WorkerSeat
from .settings import ApiMain, PoolSettings
from .signals import Signals
from .worker import Post
from .worker import main as worker_main

PROMOTE_EVERY = 0.5
#: Seconds that the last recoveries and the api child's end may take after the workers are gone.
STOP_GRACE = 5.0


class Supervisor:
    """A pool of workers on this host and the api children beside it."""

    def __init__(
        self,
        settings: PoolSettings,
        listener: socket.socket,
        api: ApiMain,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._api_main = api
        self._output = Output()
        self._tell = tell or self._output.write
        self._memory = PoolMemory(settings.workers)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._reports = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = PoolLock(settings.runtime_dir / f"{settings.name}.pool")
        self._link = Link(settings.database, f"deadsure supervisor {settings.name}")
        self._recovery = Recovery()
        self._seats = [
            WorkerSeat(number, memory, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            for number, memory in enumerate(self._memory.seats, 1)
        ]
        self._apis = [ApiSeat(number) for number in range(1, settings.api_processes + 1)]
        self._incarnation = self._new_incarnation()
        self._former: Incarnation | None = None
        self._first = True
        self._ever_ready = False
        self._promote_at = 0.0
        self._drain_until: float | None = None
        self._stop_until: float | None = None

    def run(self) -> int:
        """Supervise until told to stop. Returns 0 when everything is settled, 1 when a recovery is not committed.

        Raises SchemaMismatch when the database has another version's schema; nothing was claimed then.
        """
        self._open()
        try:
            return self._supervise()
        except SchemaMismatch:
            self._close()
            raise

    def _supervise(self) -> int:
        self._keep_apis()
        while not self._over():
            self._hear_signals()
            self._notice_exits()
            self._recovery.settle(self._link)
            self._take_part()
            self._promote()
            self._keep_apis()
            self._keep_workers()
            self._tell_pool()
            self._sleep()
        return self._close()

    # --- taking part: being an incarnation with a valid lease

    def _take_part(self) -> None:
        if self._incarnation.begun:
            if not self._incarnation.renew_if_due():
                self._forsake()
        elif not self._draining and not self._workers_left():
            if self._former is not None and self._former.end():
                self._former = None
            self._incarnation.begin(inherit=self._first)
            self._first = self._first and not self._incarnation.begun

    def _forsake(self) -> None:
        """The lease is lost: nobody of ours may go on. Kill, settle by exit proof, come back as a new incarnation."""
        events.emit("the lease is lost; killing the workers and starting anew", incarnation=str(self._incarnation.id))
        self._kill_workers("lease_expired")
        self._former, self._incarnation = self._incarnation, self._new_incarnation()

    def _new_incarnation(self) -> Incarnation:
        return Incarnation(self._settings, self._lock, self._link, self._tell)

    def _promote(self) -> None:
        if self._incarnation.begun and time.monotonic() >= self._promote_at:
            self._promote_at = time.monotonic() + PROMOTE_EVERY
            if self._link.try_call(pool.promote):
                os.eventfd_write(self._wake, 1)

    # --- children

    def _notice_exits(self) -> None:
        for seat in self._seats:
            if seat.child is not None and (exit := seat.child.exit()) is not None:
                self._forget(seat.child)
                self._recovery.add(Death(seat.child, seat.slot, exit, seat.memory.read_box(), seat.cause))
                if not seat.ready:
                    seat.backoff.failed()
                events.emit("a worker ended", worker=seat.number, pid=seat.child.pid, exit=str(exit), ready=seat.ready)
                seat.leave(exit)
        for api in self._apis:
            if api.child is not None and (exit := api.child.exit()) is not None:
                self._bury_api(api, str(exit))

    def _bury_api(self, api: ApiSeat, exit: str) -> None:
        assert api.child is not None
        assert api.relay is not None
        self._forget(api.child)
        api.child.kill_group()
        events.emit("an api child ended", pid=api.child.pid, exit=exit)
        if time.monotonic() - api.started < 1.0:
            api.backoff.failed()
        api.relay.close()
        api.child.reap()
        api.child = api.relay = None

    def _keep_workers(self) -> None:
        for seat in self._seats:
            if seat.child is None and self._may_fork(seat):
                self._fork_worker(seat)
            elif seat.starting_for() > self._settings.start_timeout:
                events.emit("a worker did not become ready in time; killing it", worker=seat.number)
                if seat.child is not None:
                    seat.child.kill()
            if seat.note_ready():
                self._ever_ready = True

    def _may_fork(self, seat: WorkerSeat) -> bool:
        return self._incarnation.begun and not self._draining and time.monotonic() >= seat.backoff.not_before

    def _fork_worker(self, seat: WorkerSeat) -> None:
        seat.prepare()
        post = Post(seat.number, seat.slot, self._incarnation.id, seat.memory, self._wake, seat.control, self._reports)
        keep = {self._wake, seat.control, self._reports, self._lock.fd}
        child = fork(lambda: worker_main(self._settings, post), keep, adopt=True)
        seat.sit(child, self._output)
        self._watch(child, seat.relay)

    def _keep_apis(self) -> None:
        for api in self._apis:
            if api.child is None and self._stop_until is None and time.monotonic() >= api.backoff.not_before:
                keep = {self._wake, self._lock.fd, self._listener.fileno()}
                listener, memory, wake = self._listener, self._memory, self._wake
                api.child = fork(lambda: self._api_main(listener, memory, wake), keep, adopt=False)  # noqa: B023
                api.relay = Relay(api.child.output, "api", self._output)
                api.started = time.monotonic()
                self._watch(api.child, api.relay)

    def _kill_workers(self, cause: Cause) -> None:
        for seat in self._seats:
            if seat.child is not None:
                seat.cause = cause
                seat.child.kill()

    def _workers_left(self) -> bool:
        return len(self._recovery) > 0 or any(seat.child is not None for seat in self._seats)

    # --- stopping

    @property
    def _draining(self) -> bool:
        return self._drain_until is not None

    def _hear_signals(self) -> None:
        for number in self._signals.arrived():
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop_now() if self._draining else self._drain()
        if self._drain_until is not None and time.monotonic() >= self._drain_until:
            self._kill_workers("shutdown")
        if self._draining and self._stop_until is None and not any(seat.child for seat in self._seats):
            self._stop_until = time.monotonic() + STOP_GRACE

    def _drain(self) -> None:
        events.emit("draining", running=sum(seat.child is not None for seat in self._seats))
        self._drain_until = time.monotonic() + self._settings.drain_timeout
        for seat in self._seats:
            seat.ask_to_drain()

    def _stop_now(self) -> None:
        events.emit("stopping at once")
        self._drain_until = time.monotonic()

    def _over(self) -> bool:
        """The workers are gone and settled, or there is no more time to settle them."""
        if self._stop_until is None:
            return False
        return not self._workers_left() or time.monotonic() >= self._stop_until

    def _close(self) -> int:
        settled = not self._workers_left() and self._incarnation.end()
        for api in self._apis:
            if api.child is not None:
                api.child.kill(signal.SIGTERM)
        self._await_apis(time.monotonic() + STOP_GRACE)
        self._link.close()
        self._signals.close()
        events.emit("stopped", settled=settled)
        return 0 if settled else 1

    def _await_apis(self, deadline: float) -> None:
        while any(api.child is not None for api in self._apis):
            self._selector.select(timeout=0.05)
            self._notice_exits()
            for api in self._apis:
                if api.relay is not None:
                    api.relay.drain()
                if api.child is not None and time.monotonic() >= deadline:
                    api.child.kill()

    # --- waiting for something to happen

    def _open(self) -> None:
        self._signals = Signals()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals.fd, selectors.EVENT_READ)
        self._selector.register(self._reports, selectors.EVENT_READ)

    def _watch(self, child: Child, relay: Relay | None) -> None:
        if child.pidfd is not None:
            self._selector.register(child.pidfd, selectors.EVENT_READ)
        self._selector.register(child.output, selectors.EVENT_READ, relay)

    def _forget(self, child: Child) -> None:
        if child.pidfd is not None:
            self._selector.unregister(child.pidfd)
        if child.output in self._selector.get_map():
            self._selector.unregister(child.output)

    def _sleep(self) -> None:
        for key, _ in self._selector.select(max(0.0, self._next_due() - time.monotonic())):
            if key.fileobj == self._reports:
                os.eventfd_read(self._reports)
            elif isinstance(key.data, Relay) and not key.data.drain():
                self._selector.unregister(key.fileobj)

    def _next_due(self) -> float:
        now = time.monotonic()
        due = [now + 1.0]
        if self._incarnation.begun:
            due += [self._promote_at, self._incarnation.renew_at]
        elif not self._draining:
            due.append(now + 0.05)
        if len(self._recovery):
            due.append(max(self._link.retry_at, now + 0.02))
        later = [seat.backoff.not_before for seat in (*self._seats, *self._apis)]
        later += [t for t in (self._drain_until, self._stop_until) if t is not None]
        return min(due + [t for t in later if t > now])

    def _tell_pool(self) -> None:
        trusted_until = self._incarnation.lease.trusted_until if self._incarnation.begun else 0
        self._memory.write_header(Header(self._incarnation.begun, self._ever_ready, self._draining, trusted_until))
