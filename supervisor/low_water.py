"""Where a worker looks for its next task: from where it last found one, so that what lies dead before does not slow it.

A row of `ready` that was taken stays in the index until it is vacuumed, and no vacuum removes it while an old snapshot
is held anywhere (a backup, a forgotten transaction). A claim that began at the head of the queue would walk over all of
them. So each queue has a low-water mark.

What appears before the mark (a more urgent task, one that was put back, one whose submit committed late) is found by a
look from the start: at least once a second, and whenever nothing else was found.
"""

from __future__ import annotations

import time

from ..runtime.model import Claimed, Place

#: Seconds after which every queue is looked at from its start again.
FULL_EVERY = 1.0


class LowWater:
    """The marks of one worker, for its queues in their configured order."""

    def __init__(self, queues: tuple[str, ...], full_every: float = FULL_EVERY) -> None:
        self._starts = tuple(Place(queue) for queue in queues)
        self._full_every = full_every
        self._marks: dict[str, Place] = {}
        self._full_at = 0.0

    def places(self) -> tuple[Place, ...]:
        """The places to look at now, in order: each queue from its mark, then from the start those that had one."""
        now = time.monotonic()
        if now >= self._full_at:
            self._full_at = now + self._full_every
            self._marks.clear()
        first = (self._marks.get(start.queue, start) for start in self._starts)
        return (*first, *(start for start in self._starts if start.queue in self._marks))

    def found(self, task: Claimed) -> None:
        """Look on from here."""
        self._marks[task.queue] = Place(task.queue, task.priority, task.run_at.isoformat(), task.id)
