"""Batches: harmless tasks claimed and finished many at a time, one commit for all of them.

Only kinds that declared `requeue` and a budget of two or more, and only first attempts, so nothing here can be
ambiguous. A batch is bounded by count and by time: past its time no handler is started, what was not started goes
back, and what is done is committed. While a handler runs on, a thread of this file does that in its place (the
worker's connection is idle then), so that one slow task does not hold up those behind it. A handler that keeps the GIL
keeps the thread out, too: then it happens when the handler returns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ..runtime import events
from ..runtime.model import Claimed, Outcome, Wanted
from ..runtime.store import hot
from ..runtime.store.batch import Done, ManyStep
from .stepping import Stepper

#: The most that is claimed at a time, and the seconds after which a batch starts no handler any more.
MOST = 50
LONGEST = 0.2


class Batch:
    """One batch in hand. The worker's thread runs it; the clock's thread may cut it short."""

    def __init__(self, tasks: list[Claimed], stepper: Stepper) -> None:
        self.stepper = stepper
        self.overdue_at = time.monotonic() + LONGEST
        self.cut: ManyStep | None = None
        self._lock = threading.Lock()
        self._waiting = deque(tasks)
        self._done: list[Done] = []
        self._running: Claimed | None = None

    def next(self, stop: bool) -> Claimed | None:
        """The next task to run; None when none is left, or `stop`, or the time is over."""
        with self._lock:
            self._running = None
            if self._waiting and not stop and time.monotonic() < self.overdue_at:
                self._running = self._waiting.popleft()
            return self._running

    def done(self, task: Claimed, outcome: Outcome) -> None:
        """Note how the running task ended."""
        with self._lock:
            self._running = None
            self._done.append(Done(task, outcome))

    def finish(self, wanted: Wanted, size: int) -> ManyStep:
        """Commit what is done, give back what was not started, and claim the next batch."""
        with self._lock:
            return self._step([], wanted, size)

    def cut_short(self) -> None:
        """While a handler runs on past the batch's time: commit what is done and give back what waits."""
        with self._lock:
            if self._running is not None and (self._waiting or self._done):
                self.cut = self._step([self._running], hot.NOWHERE, 1)

    def _step(self, kept: list[Claimed], wanted: Wanted, size: int) -> ManyStep:
        done = [*self._done, *(Done(task) for task in self._waiting)]
        step = self.stepper.step_many(done, kept, wanted, size)
        for entry, state in zip(done, step.finished, strict=False):
            if state is None:
                events.emit("a finish was refused", **entry.task.names, why="not its own")
        self._done.clear()
        self._waiting.clear()
        return step


class Clock:
    """The thread that cuts short the batch in hand when its time is over. Started with the first batch.

    While batches follow each other it is not woken for each, which would cost the handlers the GIL: it sleeps until the
    one that it last saw would be overdue, and where it saw none, as long as one may take that begins right then.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batch: Batch | None = None
        self._thread: threading.Thread | None = None
        self._asleep = False

    def watch(self, batch: Batch | None) -> None:
        """This batch from now on; None: nothing."""
        with self._changed:
            self._batch = batch
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="batch clock", daemon=True)
                self._thread.start()
            elif self._asleep and batch is not None:
                self._asleep = False
                self._changed.notify()

    def _run(self) -> None:
        while True:
            self._overdue().cut_short()

    def _overdue(self) -> Batch:
        seen = True
        with self._changed:
            while True:
                batch = self._batch
                if batch is None:
                    self._asleep = not seen
                    left = LONGEST if seen else None
                else:
                    left = batch.overdue_at - time.monotonic()
                    if left <= 0:
                        self._batch = None
                        return batch
                seen = batch is not None
                self._changed.wait(left)


class Size:
    """How many to claim at a time: as many as their handlers are likely to get done in half of a batch's time."""

    def __init__(self) -> None:
        self.next = 2

    def learn(self, ran: int, seconds: float) -> None:
        """A batch in which `ran` handlers took so long."""
        likely = int(LONGEST / 2 / max(seconds / max(ran, 1), 1e-6))
        self.next = max(1, min(MOST, likely, self.next * 2))


class Batches:
    """Works through batches until there is something else to do."""

    def __init__(self, stepper: Stepper, run: Callable[[Claimed], Outcome], stop: Callable[[], bool]) -> None:
        self._stepper = stepper
        self._run = run
        self._stop = stop
        self._clock = Clock()
        self._size = Size()

    def work(self, tasks: list[Claimed], wanted: Callable[[], Wanted]) -> ManyStep:
        """Run these tasks, commit them together, and claim what comes next."""
        batch = Batch(tasks, self._stepper)
        began = time.monotonic()
        self._clock.watch(batch)
        ran = 0
        while (task := batch.next(self._stop())) is not None:
            batch.done(task, self._run(task))
            ran += 1
        self._clock.watch(None)
        self._size.learn(ran, time.monotonic() - began)
        if batch.cut is not None and batch.cut.refused is not None:
            return batch.cut
        return batch.finish(wanted(), self._size.next)
