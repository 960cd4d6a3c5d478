"""A worker's life: import the application, connect, register, then claim, run, finish until told to stop.

The loop is `Worker.work`. A worker has no signal handlers: it is told to drain through shared memory, and any signal
that reaches it is the end that its supervisor will learn of.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from ..metrics.memory import MetricsMemory
from ..metrics.worker import WorkerCounter
from ..runtime import events, executor, loading, points, reconciling
from ..runtime.blackbox import Phase, SeatMemory
from ..runtime.errors import AppNotLoaded, StoreError
from ..runtime.facts import Ran
from ..runtime.handlers import App
from ..runtime.ids import new_token
from ..runtime.model import Claimed, Outcome, Refusal, Slot, Step, Wanted
from ..runtime.performing import Attempt
from ..runtime.store import effects, hot, pool, reconcile
from ..runtime.store.effects import Permission, Prepared
from . import told
from .batching import Batches
from .low_water import LowWater
from .settings import PoolSettings
from .stepping import FIRST_PAUSE, Stepper

#: Seconds between two looks for unknown tasks while none is due.
LOOKUP_EVERY = 1.0
EXIT_APP_NOT_LOADED = 3
EXIT_SLOT_ENDED = 4
EXIT_NOT_THE_WORKER = 5
_SLOT_ENDED = "its slot has ended: somebody proved this worker dead or its lease over"


@dataclass(frozen=True, slots=True)
class Post:
    """Where a worker is put: its seat, the ids made for it, what it shares, and the descriptors it inherits.

    `wake` is the pool's eventfd: there may be work. `control` is its own: look at the drain flag. `report` tells the
    supervisor that something changed. `trusted` is whether the lease may still be relied on, by the local clock.
    """

    number: int
    slot: UUID
    incarnation: UUID
    memory: SeatMemory
    metrics: MetricsMemory
    wake: int
    control: int
    report: int
    trusted: Callable[[], bool]


class MustExit(Exception):
    """This worker may do no more; `code` is its exit code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def main(settings: PoolSettings, post: Post) -> int:
    """The whole life of a worker process. Returns its exit code."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    events.subscribe(told.tell)
    # What a handler forks is not the worker, and neither tells nor counts anything.
    os.register_at_fork(after_in_child=events.unsubscribe_all)
    if settings.drill is not None:
        points.arm(*settings.drill)
    worker = Worker(settings, post)
    try:
        worker.start()
        worker.work()
    except MustExit as error:
        events.emit("the worker exits", why=str(error))
        return error.code
    return 0


class Worker:
    """One worker process: one connection, one slot, one task at a time."""

    def __init__(self, settings: PoolSettings, post: Post) -> None:
        self._settings = settings
        self._post = post
        name = f"deadsure worker {settings.name}"
        self._stepper = Stepper(settings.database, name, Slot(post.slot, new_token()), self._pause)
        self._app = App()
        self._pid = os.getpid()
        self._woken = False
        self._gate = StoreGate(self._stepper)
        self._effects: list[str] = []
        self._lookup_at = 0.0
        self._low_water = LowWater(settings.queues)
        self._batches = Batches(self._stepper, self._run, lambda: post.memory.drain)
        self._counter = WorkerCounter(post.metrics, post.metrics.seats[post.number - 1], post.slot)
        events.count(self._counter)

    def start(self) -> None:
        """Import, connect, register, report ready. Raises MustExit."""
        self._say(Phase.STARTING)
        self._load()
        self._say(Phase.CONNECTING)
        self._register()
        self._say(Phase.IDLE)
        os.eventfd_write(self._post.report, 1)

    def work(self) -> None:
        """Finish what is in hand and claim the next, in one statement; run it; until a drain. Raises MustExit."""
        task: Claimed | None = None
        outcome: Outcome | None = None
        while task is not None or not self._post.memory.drain:
            if task is None and self._lookup_due:
                self._reconcile()
            step = self._step(task, outcome)
            if step.claimed is not None and self._may_run_together(step.claimed):
                step = self._run_together(step.claimed)
            task, outcome = step.claimed, None
            if task is not None:
                self._low_water.found(task)
                outcome = self._run(task)
            elif not step.stale:
                self._wait()
        self._say(Phase.STOPPING)

    # --- the four verbs of the loop

    def _step(self, task: Claimed | None, outcome: Outcome | None) -> Step:
        step = self._stepper.step(task, outcome, self._wanted(task))
        if step.refused is Refusal.SLOT_ENDED:
            raise MustExit(EXIT_SLOT_ENDED, _SLOT_ENDED)
        if step.finished is not None:
            points.reach("after_finish")
        if step.refused is not None and task is not None:
            events.emit("a finish was refused", **task.names, why=str(step.refused))
        self._wait_for_trust(step.trusted)
        return step

    def _wait_for_trust(self, trusted: bool) -> None:
        """Without a lease nothing is claimed: it is renewed soon, or this worker is killed."""
        if not trusted:
            time.sleep(min(1.0, self._settings.poll_interval))

    def _run(self, task: Claimed) -> Outcome:
        memory = self._post.memory
        self._pass_on_wake()
        self._say(Phase.HANDLING, task)
        points.reach("after_claim")
        registered = self._app.handler(task.kind)
        began = time.monotonic()
        if registered.provider is None:
            outcome = executor.execute(self._app, task, lambda: memory.cancel_requested(task.id, task.fence))
        else:
            outcome = Attempt(registered, registered.provider, task, self._gate, self._post.trusted).run()
        if os.getpid() != self._pid:
            # A handler forked, and its child came back here: it must not touch the worker's connection.
            os._exit(EXIT_NOT_THE_WORKER)
        events.note(Ran(task.kind, time.monotonic() - began))
        self._tell_mismatch(task, outcome)
        self._say(Phase.FINISHING, task)
        points.reach("before_finish")
        return outcome

    def _run_together(self, task: Claimed) -> Step:
        """Harmless tasks, many at a time, until one must be run alone or none is left."""
        hand = [task]
        while hand and self._may_run_together(hand[0]):
            self._low_water.found(hand[-1])
            many = self._batches.work(hand, lambda: self._wanted(task))
            if many.refused is Refusal.SLOT_ENDED:
                raise MustExit(EXIT_SLOT_ENDED, _SLOT_ENDED)
            self._wait_for_trust(many.trusted)
            hand = list(many.claimed)
        return Step(many.slot, claimed=hand[0] if hand else None, stale=many.stale)

    def _may_run_together(self, task: Claimed) -> bool:
        return task.attempt == 1 and self._app.handler(task.kind).kind.batchable

    def _tell_mismatch(self, task: Claimed, outcome: Outcome) -> None:
        if outcome.effect is not None and outcome.effect.cause == "receipt_mismatch":
            events.emit("a receipt does not prove its intent", **task.names, why=outcome.reason)

    @property
    def _lookup_due(self) -> bool:
        return bool(self._effects) and time.monotonic() >= self._lookup_at

    def _reconcile(self) -> None:
        """Look up one unknown task that is due. Between two lookups there is always a look at the queue, and a backlog
        does not keep them away either: a task that waits to be looked up has waited long already.
        """
        hold = reconciling.hold(self._app)
        slot = self._post.slot
        doubt = self._stepper.ask(lambda connection, _: reconcile.claim_lookup(connection, slot, self._effects, hold))
        if doubt is None:
            self._lookup_at = time.monotonic() + LOOKUP_EVERY
            return
        answer = reconciling.ask(self._app, doubt)
        end = self._stepper.ask(lambda connection, _: reconciling.settle(connection, self._app, doubt, answer))
        events.emit("an unknown task was looked up", **doubt.names, outcome=end)

    def _wait(self) -> None:
        """Sleep until there may be work, a drain, or the poll interval is over."""
        self._say(Phase.IDLE)
        ready, _, _ = select.select([self._post.wake, self._post.control], [], [], self._settings.poll_interval)
        self._woken = self._post.wake in ready and _take(self._post.wake)

    # --- what they need

    def _wanted(self, task: Claimed | None) -> Wanted:
        if self._post.memory.drain or (task is not None and self._lookup_due):
            return hot.NOWHERE  # what is in hand is finished alone, so that the lookup gets its turn
        return Wanted(self._low_water.places(), self._app.kinds)

    def _pass_on_wake(self) -> None:
        """One wake-up reaches one worker; the one that found work wakes the next, until one finds nothing."""
        if self._woken:
            os.eventfd_write(self._post.wake, 1)
            self._woken = False

    def _pause(self, seconds: float) -> None:
        """Wait for the database; a drain ends that when there is nothing in hand to commit. Raises MustExit."""
        select.select([self._post.control], [], [], seconds)
        box = self._post.memory.read_box()
        idle = box is not None and box.phase in (Phase.CONNECTING, Phase.IDLE)
        if self._post.memory.drain and idle:
            raise MustExit(0, "asked to stop, with nothing in hand")
        if self._post.memory.drain:
            time.sleep(seconds)  # the control descriptor stays readable

    def _load(self) -> None:
        try:
            self._app = loading.load(self._settings.app, self._settings.app_dir)
            self._effects = [kind.name for kind in self._app.kinds if kind.provider is not None]
            providers = {kind.provider: None for kind in self._app.kinds if kind.provider is not None}
            self._counter.meet([kind.name for kind in self._app.kinds], providers)
        except AppNotLoaded as error:
            self._post.memory.problem = str(error)
            raise MustExit(EXIT_APP_NOT_LOADED, str(error)) from error

    def _register(self) -> None:
        while True:
            try:
                connection = self._stepper.connected()
                pool.register_kinds(connection, self._app.kinds)
                mine = pool.register_slot(connection, self._stepper.slot, self._post.incarnation, self._post.number)
            except StoreError as error:
                events.emit("the worker cannot register yet", error=str(error))
                self._pause(FIRST_PAUSE)
                continue
            if not mine:
                raise MustExit(EXIT_SLOT_ENDED, "its incarnation has ended")
            return

    def _say(self, phase: Phase, task: Claimed | None = None) -> None:
        if task is None:
            self._post.memory.write_box(phase, self._post.slot, os.getpid())
        else:
            timed = phase is Phase.HANDLING and task.timeout is not None
            deadline = time.monotonic_ns() + int((task.timeout or 0) * 1e9) if timed else 0
            self._post.memory.write_box(phase, self._post.slot, os.getpid(), task.id, task.fence, deadline)


class StoreGate:
    """The database, as an attempt at an effect needs it: each question is asked until it is answered."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def stored_effect(self, task: Claimed) -> tuple[str, bytes] | None:
        return self._stepper.ask(lambda connection, slot: effects.stored(connection, slot.id, task))

    def before_call(self, task: Claimed, what: Prepared, timeout: float, retention: float | None) -> Permission:
        while True:
            found = self._stepper.ask(lambda c, slot: effects.before_call(c, slot, task, what, timeout, retention))
            if found.verdict != "untrusted":
                return found
            time.sleep(FIRST_PAUSE)  # renewed soon, or this worker is killed


def _take(wake: int) -> bool:
    try:
        os.eventfd_read(wake)
    except BlockingIOError:
        return False
    return True
