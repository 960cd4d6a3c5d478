"""What the processes of one pool tell each other: one anonymous shared mapping, made before the first fork.

    header      written by the supervisor: may this pool serve, and until when
    seat 1..N   written by the supervisor: which process sits there, how often it died and how
                written by the worker, its black box: what it is doing, kept through a SIGKILL as evidence
                one byte: please finish what you have and go
                a text: why the worker could not start
                task and fence that somebody asked to cancel, written by the api children and the supervisor

Reading it needs no database and no lock.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal
from uuid import UUID

from .records import Record

_HEADER_SIZE = 256
_SEAT_SIZE = 1280
_PROBLEM_SIZE = 200
_NOTHING = bytes(16)


class Phase(IntEnum):
    """What a worker is doing, as it last said itself."""

    STARTING = 0  # importing the application
    CONNECTING = 1  # waiting for the database; costs it nothing
    IDLE = 2
    HANDLING = 3  # inside the handler
    FINISHING = 4  # the handler has returned, the outcome is being committed
    STOPPING = 5


class Seating(IntEnum):
    """What the supervisor says about a seat. A spare one is taken only while the application is being reloaded."""

    SPARE = 0
    EMPTY = 1
    TAKEN = 2
    DRAINING = 3


@dataclass(frozen=True, slots=True)
class Box:
    """One entry of a black box. `since` is nanoseconds since the Unix epoch; `deadline` is nanoseconds of
    CLOCK_MONOTONIC at which the handler's timeout ends, 0 without one.
    """

    phase: Phase
    slot: UUID
    pid: int
    task: UUID | None
    fence: int
    since: int
    deadline: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """The supervisor's word on a seat. `exits` counts deaths; `last_exit` is a signal name or `exit code N`, and
    what the worker said about it.
    """

    seating: Seating
    pid: int
    since: int
    exits: int
    last_exit: str


@dataclass(frozen=True, slots=True)
class Header:
    """The pool as a whole. `trusted_until` is nanoseconds of CLOCK_BOOTTIME; 0 without a lease. `announce_as` is this
    incarnation's id while another one may have idle workers, None while nobody else would hear it.
    """

    recovered: bool
    ever_ready: bool
    draining: bool
    trusted_until: int
    announce_as: UUID | None = None

    @property
    def trusted(self) -> bool:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) < self.trusted_until


class SeatMemory:
    """The part of the shared memory that belongs to one seat."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._seat = Record(memory, offset, "BIqI240s")
        self._box = Record(memory, offset + 560, "B16sI16sqqq")
        self._drain_at = offset + 760
        self._cancel_at = offset + 768
        self._problem_at = offset + 800

    def write_seat(self, seat: Seat) -> None:
        last_exit = seat.last_exit.encode("utf-8", "replace")[:240]
        self._seat.write(seat.seating, seat.pid, seat.since, seat.exits, last_exit)

    def read_seat(self) -> Seat:
        found = self._seat.read()
        if found is None:
            return Seat(Seating.SPARE, 0, 0, 0, "")
        seating, pid, since, exits, last = found
        return Seat(Seating(seating), pid, since, exits, last.rstrip(b"\0").decode("utf-8", "replace"))

    def write_box(
        self, phase: Phase, slot: UUID, pid: int, task: UUID | None = None, fence: int = 0, deadline: int = 0
    ) -> None:
        task_bytes = task.bytes if task else _NOTHING
        self._box.write(phase, slot.bytes, pid, task_bytes, fence, time.time_ns(), deadline)

    def read_box(self) -> Box | None:
        found = self._box.read()
        if found is None:
            return None
        phase, slot, pid, task, fence, since, deadline = found
        held = UUID(bytes=task) if task != _NOTHING else None
        return Box(Phase(phase), UUID(bytes=slot), pid, held, fence, since, deadline)

    @property
    def drain(self) -> bool:
        """Whether the worker is asked to finish what it has and go."""
        return self._memory[self._drain_at] != 0

    @drain.setter
    def drain(self, value: bool) -> None:
        self._memory[self._drain_at] = int(value)

    @property
    def problem(self) -> str:
        """Why the worker could not start, in its own words; empty without one."""
        raw = self._memory[self._problem_at : self._problem_at + _PROBLEM_SIZE]
        return raw.rstrip(b"\0").decode("utf-8", "replace")

    @problem.setter
    def problem(self, text: str) -> None:
        raw = text.encode("utf-8", "replace")[:_PROBLEM_SIZE]
        self._memory[self._problem_at : self._problem_at + _PROBLEM_SIZE] = raw.ljust(_PROBLEM_SIZE, b"\0")

    def request_cancel(self, task: UUID, fence: int) -> None:
        """Ask the worker to give up this attempt. Many may write: a torn flag names nothing, and the supervisor writes
        it again at its next renewal.
        """
        self._memory[self._cancel_at : self._cancel_at + 24] = _flag(task, fence)

    def cancel_requested(self, task: UUID, fence: int) -> bool:
        """Whether somebody asked to cancel exactly this attempt."""
        return self._memory[self._cancel_at : self._cancel_at + 24] == _flag(task, fence)


WorkerState = Literal["starting", "idle", "busy", "stopping"]
_STATES: dict[Phase, WorkerState] = {
    Phase.STARTING: "starting",
    Phase.CONNECTING: "starting",
    Phase.IDLE: "idle",
    Phase.HANDLING: "busy",
    Phase.FINISHING: "busy",
    Phase.STOPPING: "stopping",
}


def worker_state(seat: SeatMemory) -> WorkerState | None:
    """What the worker in this seat does; None where nobody is missing. Nobody in a seat that is not spare: starting."""
    told = seat.read_seat()
    match told.seating:
        case Seating.SPARE:
            return None
        case Seating.EMPTY:
            return "starting"
        case Seating.DRAINING:
            return "stopping"
        case Seating.TAKEN:
            box = seat.read_box()
            return _STATES[box.phase] if box is not None and box.pid == told.pid else "starting"


def _flag(task: UUID, fence: int) -> bytes:
    return task.bytes + fence.to_bytes(8, "little")


class PoolMemory:
    """The whole mapping. Made by the supervisor before it forks, then used by every process of the pool."""

    def __init__(self, seats: int) -> None:
        self._memory = mmap.mmap(-1, _HEADER_SIZE + seats * _SEAT_SIZE)
        self._header = Record(self._memory, 0, "BBBq16s")
        self.seats = tuple(SeatMemory(self._memory, _HEADER_SIZE + n * _SEAT_SIZE) for n in range(seats))

    def write_header(self, header: Header) -> None:
        sender = header.announce_as.bytes if header.announce_as else _NOTHING
        self._header.write(header.recovered, header.ever_ready, header.draining, header.trusted_until, sender)

    def read_header(self) -> Header:
        found = self._header.read()
        if found is None:
            return Header(False, False, False, 0)
        recovered, ever_ready, draining, trusted_until, sender = found
        announce_as = UUID(bytes=sender) if sender != _NOTHING else None
        return Header(bool(recovered), bool(ever_ready), bool(draining), trusted_until, announce_as)
