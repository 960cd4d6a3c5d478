"""Seats: who sits in a worker's place, what its shared memory says, and when it may be taken again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from ..runtime.blackbox import Phase, Seat, Seating, SeatMemory
from ..runtime.model import Cause
from .child import Child
from .kernel import Exit
from .output import Relay

FIRST_PAUSE = 0.2
#: Seconds until a fork is tried again for which nothing was left.
NOTHING_LEFT_PAUSE = 1.0
LONGEST_PAUSE = 30.0
#: Three deaths in a row, each within this many seconds of being ready, count like deaths before it.
SOON = 1.0


@dataclass(slots=True)
class Backoff:
    """When a seat may be taken again. Only a child that ended before it was ready makes it wait."""

    failures: int = 0
    not_before: float = 0.0

    def pause(self, seconds: float) -> None:
        """Wait for what is no fault of the child."""
        self.not_before = time.monotonic() + seconds

    def failed(self) -> None:
        self.failures += 1
        self.not_before = time.monotonic() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.failures - 1))

    def succeeded(self) -> None:
        self.failures = 0
        self.not_before = 0.0


@dataclass(slots=True)
class WorkerSeat:
    """A worker's place. `slot` is the id of the row of whoever sits in it now.

    `cause` is why it was killed, where the supervisor did it itself.
    """

    number: int
    memory: SeatMemory
    control: int
    child: Child | None = None
    relay: Relay | None = None
    slot: UUID = field(default_factory=uuid4)
    ready: bool = False
    ready_at: float = 0.0
    crashes: int = 0
    cause: Cause = "worker_died"
    backoff: Backoff = field(default_factory=Backoff)

    def prepare(self) -> None:
        """Make it free for the next worker: a new slot id, no drain, an empty black box."""
        self.slot, self.ready, self.cause = uuid4(), False, "worker_died"
        self.memory.drain = False
        self.memory.problem = ""
        _empty(self.control)
        self.memory.write_box(Phase.STARTING, self.slot, 0)

    def sit(self, child: Child) -> None:
        """The worker that was forked for this seat."""
        self.child = child
        self.relay = Relay(child.output, f"worker-{self.number}")
        before = self.memory.read_seat()
        self.memory.write_seat(Seat(Seating.TAKEN, child.pid, time.time_ns(), before.exits, before.last_exit))

    def ask_to_drain(self) -> None:
        """Tell the worker to finish what it has and go."""
        self.memory.drain = True
        os.eventfd_write(self.control, 1)
        seat = self.memory.read_seat()
        self.memory.write_seat(Seat(Seating.DRAINING, seat.pid, seat.since, seat.exits, seat.last_exit))

    def leave(self, exit: Exit) -> None:
        """The worker has ended."""
        self._judge(exit)
        if self.relay is not None:
            self.relay.close()
        self.child, self.relay = None, None
        exits = self.memory.read_seat().exits + 1
        problem = self.memory.problem
        said = f"{exit}: {problem}" if problem else str(exit)
        self.memory.write_seat(Seat(Seating.EMPTY, 0, time.time_ns(), exits, said))

    def mark_spare(self) -> None:
        """Nobody is missing in it."""
        seat = self.memory.read_seat()
        self.memory.write_seat(Seat(Seating.SPARE, 0, seat.since, seat.exits, seat.last_exit))

    def _judge(self, exit: Exit) -> None:
        """Whether the next one has to wait. A SIGKILL after it was ready came from outside, and is no crash loop."""
        if not self.ready:
            self.backoff.failed()
        elif exit.signal == "SIGKILL" or time.monotonic() - self.ready_at >= SOON:
            self.crashes = 0
        else:
            self.crashes += 1
            if self.crashes >= 3:
                self.backoff.failed()

    def starting_for(self) -> float:
        """Seconds since it began to import the application; 0 once it has, or waits for the database."""
        box = self.memory.read_box()
        if self.child is None or box is None or box.phase is not Phase.STARTING:
            return 0.0
        return time.time() - box.since / 1e9

    def note_ready(self) -> bool:
        """Whether the worker has become ready since the last call."""
        box = self.memory.read_box()
        if self.ready or self.child is None or box is None or box.slot != self.slot:
            return False
        self.ready = box.phase in (Phase.IDLE, Phase.HANDLING, Phase.FINISHING)
        if self.ready:
            self.ready_at = time.monotonic()
            if not self.crashes:
                self.backoff.succeeded()
        return self.ready


def _empty(eventfd: int) -> None:
    try:
        os.eventfd_read(eventfd)
    except BlockingIOError:
        return
