"""The workers of a pool: forking them, noticing how they end, asking them to go, killing those that overrun."""

from __future__ import annotations

import time
from collections.abc import Iterable
from uuid import UUID

from ..metrics.worker import decode
from ..runtime import events
from ..runtime.facts import Exited
from ..runtime.model import Cause
from .child import fork
from .recovery import Death
from .reload import Reload
from .seats import NOTHING_LEFT_PAUSE, WorkerSeat
from .settings import PoolSettings
from .shared import Shared, new_eventfd
from .timeouts import Overrun
from .watch import Watch
from .worker import Post, main


class Workers:
    """One seat per worker. A seat is taken again as soon as its worker has ended, under a new slot id."""

    def __init__(self, settings: PoolSettings, shared: Shared) -> None:
        self._settings = settings
        self._shared = shared
        self._overrun = Overrun()
        places = enumerate(shared.memory.seats, 1)
        self._seats = [WorkerSeat(number, memory, new_eventfd()) for number, memory in places]
        self._reload = Reload(self._seats[-1])

    def keep(self, watch: Watch, incarnation: UUID) -> None:
        """Fork those that are missing and may be forked."""
        for seat in self._seats:
            missing = self._reload.wants_candidate if seat is self._reload.spare else seat.child is None
            if missing and time.monotonic() >= seat.backoff.not_before and self._fork(seat, incarnation):
                assert seat.child is not None
                assert seat.relay is not None
                watch.add(seat.child, seat.relay)

    def go_on_reloading(self) -> bool:
        """Let the next old worker go when its successor is ready. True once, when the new code has proved itself."""
        return self._reload.step()

    def reload(self) -> None:
        """Replace them one by one with freshly imported code; the old ones stay if it cannot be imported."""
        self._reload.begin(self._seats)

    def notice_exits(self, watch: Watch) -> list[Death]:
        """The workers that have ended since the last call: confirmed by the kernel, not yet collected."""
        deaths = []
        for seat in self._seats:
            if seat.child is not None and (exit := seat.child.exit()) is not None:
                watch.forget(seat.child)
                counted = decode(self._shared.metrics.seats[seat.number - 1].take_over(), seat.slot)
                deaths.append(Death(seat.child, seat.slot, exit, seat.memory.read_box(), seat.cause, counted))
                events.emit("a worker ended", worker=seat.number, pid=seat.child.pid, exit=str(exit), ready=seat.ready)
                self._overrun.forget(seat.slot)
                self._reload.noticed_exit(seat)
                failures = seat.backoff.failures
                seat.leave(exit)
                events.note(Exited(exit.cause, seat.backoff.failures > failures))
                if seat is self._reload.spare:
                    seat.mark_spare()
        return deaths

    def notice_ready(self) -> bool:
        """Whether any worker has become ready since the last call."""
        return sum(seat.note_ready() for seat in self._seats) > 0

    def kill_overdue(self) -> None:
        """Kill those whose handler overran its timeout, and those that did not become ready in time."""
        for seat in self._seats:
            self._overrun.check(seat)
            if seat.child is not None and seat.starting_for() > self._settings.start_timeout:
                events.emit("a worker did not become ready in time; killing it", worker=seat.number)
                seat.child.kill()

    def ask_to_drain(self) -> None:
        """Tell all to finish what they have and go."""
        for seat in self._seats:
            if seat.child is not None:
                seat.ask_to_drain()
                if seat.starting_for() > 0:
                    seat.child.kill()  # it imports the application, holds nothing, and would not look up for long

    def kill(self, cause: Cause) -> None:
        """Kill all. `cause` is what their tasks will say."""
        for seat in self._seats:
            if seat.child is not None:
                seat.cause = cause
                seat.child.kill()

    def request_cancel(self, attempts: Iterable[tuple[UUID, int]]) -> None:
        """Show the cancel request to the workers that run these tasks under these fences."""
        wanted = set(attempts)
        for seat in self._seats:
            box = seat.memory.read_box()
            if box is not None and box.task is not None and (box.task, box.fence) in wanted:
                seat.memory.request_cancel(box.task, box.fence)

    @property
    def pids(self) -> set[int]:
        """Those that live."""
        return {seat.child.pid for seat in self._seats if seat.child is not None}

    @property
    def alive(self) -> int:
        """How many there are."""
        return sum(seat.child is not None for seat in self._seats)

    @property
    def due(self) -> list[float]:
        """When (time.monotonic) there is something to do: a seat to be taken, a timeout to be checked."""
        seats = [seat.backoff.not_before for seat in self._seats if seat.child is None]
        return seats + self._overrun.due(self._seats)

    def _fork(self, seat: WorkerSeat, incarnation: UUID) -> bool:
        """Put a new worker into the seat. False: nothing is left to start one with."""
        seat.prepare()
        shared = self._shared
        post = Post(
            seat.number,
            seat.slot,
            incarnation,
            seat.memory,
            shared.metrics,
            shared.wake,
            seat.control,
            shared.report,
            lambda: shared.memory.read_header().trusted,
        )
        keep = {shared.wake, seat.control, shared.report, shared.lock, shared.metrics.lock}
        try:
            child = fork(lambda: main(self._settings, post), keep)
        except OSError as error:
            events.emit("a worker could not be started", worker=seat.number, error=str(error))
            seat.backoff.pause(NOTHING_LEFT_PAUSE)
            return False
        seat.sit(child)
        return True
