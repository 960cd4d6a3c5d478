"""The api children: each serves HTTP in one process, on a socket that was bound before it was forked."""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import dataclass, field
from functools import partial

from ..runtime import events
from .child import Child, fork
from .output import Relay
from .seats import NOTHING_LEFT_PAUSE, Backoff
from .settings import ApiMain
from .shared import Shared
from .watch import Watch

#: A child that ended sooner than this many seconds after its start waits before it is started again.
_SOON = 1.0


@dataclass(slots=True)
class ApiSeat:
    """An api child's place."""

    number: int
    child: Child | None = None
    relay: Relay | None = None
    started: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


class Apis:
    """All api children of this pool. They hold no task: what they leave behind is only to be collected."""

    def __init__(self, count: int, main: ApiMain, listener: socket.socket, shared: Shared) -> None:
        self._seats = [ApiSeat(number) for number in range(count)]
        self._main = main
        self._listener = listener
        self._shared = shared

    def keep(self, watch: Watch) -> None:
        """Start those that are missing."""
        for seat in self._seats:
            if seat.child is None and time.monotonic() >= seat.backoff.not_before:
                keep = {self._shared.wake, self._shared.lock, self._shared.metrics.lock, self._listener.fileno()}
                try:
                    seat.child = fork(partial(self._life, seat.number), keep)
                except OSError as error:
                    events.emit("an api child could not be started", error=str(error))
                    seat.backoff.pause(NOTHING_LEFT_PAUSE)
                    continue
                seat.relay = Relay(seat.child.output, f"api-{seat.number + 1}")
                seat.started = time.monotonic()
                watch.add(seat.child, seat.relay)

    def notice_exits(self, watch: Watch) -> None:
        """Collect those that have ended."""
        for seat in self._seats:
            if seat.child is not None and (exit := seat.child.exit()) is not None:
                watch.forget(seat.child)
                seat.child.kill_group()
                events.emit("an api child ended", process=f"api-{seat.number + 1}", pid=seat.child.pid, exit=str(exit))
                if time.monotonic() - seat.started < _SOON:
                    seat.backoff.failed()
                else:
                    seat.backoff.succeeded()
                if seat.relay is not None:
                    seat.relay.close()
                seat.child.reap()
                seat.child = seat.relay = None

    def restart(self) -> None:
        """End them in good order, so that `keep` forks new ones. The socket stays open: no caller is refused."""
        self._signal(signal.SIGTERM)

    def stop(self, watch: Watch, deadline: float) -> None:
        """End them in good order, and by SIGKILL at `deadline` (time.monotonic); returns when all are collected."""
        self._signal(signal.SIGTERM)
        while any(seat.child is not None for seat in self._seats):
            watch.sleep_until(min(deadline, time.monotonic() + 1.0) if time.monotonic() < deadline else 0.0)
            if time.monotonic() >= deadline:
                self._signal(signal.SIGKILL)
            self.notice_exits(watch)

    @property
    def pids(self) -> set[int]:
        """Those that live."""
        return {seat.child.pid for seat in self._seats if seat.child is not None}

    @property
    def retry_at(self) -> list[float]:
        """When (time.monotonic) missing ones may be started."""
        return [seat.backoff.not_before for seat in self._seats if seat.child is None]

    def _signal(self, number: signal.Signals) -> None:
        for seat in self._seats:
            if seat.child is not None:
                seat.child.kill(number)

    def _life(self, number: int) -> int:
        return self._main(self._listener, self._shared.memory, self._shared.wake, self._shared.metrics, number)
