"""A task's timeout: the worker is killed only if this very attempt is still inside its handler.

The handler may return at the very moment. So the worker is stopped first (SIGSTOP), and its black box is read when it
really stands still: the phase `finishing` is written before the outcome is sent, and that statement may already have
claimed another task. Same attempt and still in its handler: SIGKILL. Anything else: SIGCONT, and nothing happened.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from ..runtime import events
from ..runtime.blackbox import Box, Phase
from .seats import WorkerSeat

#: Seconds between two looks at a worker that was told to stop and does not stand still yet.
_LOOK_AGAIN = 0.002


class Overrun:
    """The workers that are stopped, or being stopped, to be judged."""

    def __init__(self) -> None:
        #: By the worker's slot, which is never used again: a note about a dead worker says nothing about the next.
        self._stopping: dict[UUID, Box] = {}

    def check(self, seat: WorkerSeat) -> None:
        """Take the next step with this seat: stop, judge, or nothing. Never waits."""
        if seat.child is None or seat.cause == "timeout":
            self._stopping.pop(seat.slot, None)  # nobody there, or killed and not yet noticed
            return
        suspect = self._stopping.get(seat.slot)
        if suspect is None:
            box = seat.memory.read_box()
            if box is not None and box.slot == seat.slot and _overdue(box):
                self._stopping[seat.slot] = box
                seat.child.kill(signal.SIGSTOP)
        elif _stands_still(seat.child.pid):
            del self._stopping[seat.slot]
            self._judge(seat, suspect)

    def forget(self, slot: UUID) -> None:
        """This worker has ended."""
        self._stopping.pop(slot, None)

    def due(self, seats: Iterable[WorkerSeat]) -> list[float]:
        """When (time.monotonic) the next look is due."""
        boxes = [seat.memory.read_box() for seat in seats if seat.child is not None]
        due = [box.deadline / 1e9 for box in boxes if box is not None and box.phase is Phase.HANDLING and box.deadline]
        return [*due, time.monotonic() + _LOOK_AGAIN] if self._stopping else due

    def _judge(self, seat: WorkerSeat, suspect: Box) -> None:
        assert seat.child is not None
        box = seat.memory.read_box()
        if box is not None and _overdue(box) and (box.task, box.fence) == (suspect.task, suspect.fence):
            seat.cause = "timeout"
            events.emit("a task overran its timeout; killing its worker", task=str(box.task), fence=box.fence)
            seat.child.kill()
        else:
            seat.child.kill(signal.SIGCONT)


def _overdue(box: Box) -> bool:
    return box.phase is Phase.HANDLING and 0 < box.deadline <= time.monotonic_ns()


def _stands_still(pid: int) -> bool:
    """Whether the kernel says that every thread of it is stopped, or that it is dead."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # no descriptor left to look with
        return False
    return all(state in "TtZX" for state in states)
