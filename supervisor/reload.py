"""Replacing the workers one by one with freshly imported code (SIGHUP).

Each new worker is forked into the spare seat first. When it is ready, one old worker is asked to drain and its seat
becomes the spare. If the first new one ends before it is ready (the application cannot be imported), nothing more is
replaced: the old workers stay, with the old code.
"""

from __future__ import annotations

from ..runtime import events
from .seats import WorkerSeat


class Reload:
    """Which workers still run the code from before, and which seat is the spare one."""

    def __init__(self, spare: WorkerSeat) -> None:
        self.spare = spare
        self._old: list[WorkerSeat] = []
        self._proven = False

    def begin(self, seats: list[WorkerSeat]) -> None:
        """From now on every worker that lives is to be replaced."""
        self._old = [seat for seat in seats if seat.child is not None and seat is not self.spare]
        self._proven = False
        self.spare.backoff.succeeded()
        events.emit("reloading the application", workers=len(self._old))

    @property
    def wants_candidate(self) -> bool:
        """Whether a worker is to be forked into the spare seat."""
        self._old = [seat for seat in self._old if seat.child is not None]
        return bool(self._old) and self.spare.child is None

    def step(self) -> bool:
        """When the candidate is ready, let one old worker go. True for the first: the new code can be imported."""
        if self.spare.child is None or not self.spare.ready or not self._old:
            return False
        first, self._proven = not self._proven, True
        leaving = self._old.pop(0)
        self.spare = leaving
        leaving.ask_to_drain()
        if not self._old:
            events.emit("the application was reloaded")
        return first

    def noticed_exit(self, seat: WorkerSeat) -> None:
        """A worker has ended; the candidate's end before it was ready ends the reload."""
        if seat in self._old:
            self._old.remove(seat)  # its successor has the new code
        elif seat is self.spare and not seat.ready and self._old:
            self._old = []
            events.emit("the reload was given up; the old workers stay", why=seat.memory.problem or "it did not start")
