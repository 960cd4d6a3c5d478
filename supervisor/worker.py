"""A worker's life: import the application, connect, register, then claim, run, finish until told to stop.

The loop is `Worker.work`. A worker has no signal handlers: it is told to drain through shared memory, and any signal
that reaches it is the end that its supervisor will learn of.
"""

from __future__ import annotations

import os
import select
import sys
import time
from dataclasses import dataclass, replace
from uuid import UUID

from ..runtime import db, events, executor, loading, sql
from ..runtime.blackbox import Phase, SeatMemory
from ..runtime.errors import AppNotLoaded, DatabaseUnavailable, InDoubt, NotStorable, StatementRefused, StoreError
from ..runtime.handlers import App
from ..runtime.ids import new_token
from ..runtime.model import Claimed, Outcome, Refusal, Slot, Step, Wanted
from ..runtime.store import hot, pool
from .settings import PoolSettings

EXIT_APP_NOT_LOADED = 3
EXIT_SLOT_ENDED = 4
_BACKEND = sql.statement("backend_identity")
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
#: SQLSTATE classes that speak of the value sent: data exception, program limit exceeded.
_DATA_EXCEPTIONS = ("22", "54")


@dataclass(frozen=True, slots=True)
class Post:
    """Where a worker is put: its seat, the ids made for it, and the descriptors it inherits.

    `wake` is the pool's eventfd: there may be work. `control` is its own: look at the drain flag. `report` tells the
    supervisor that something changed.
    """

    number: int
    slot: UUID
    incarnation: UUID
    memory: SeatMemory
    wake: int
    control: int
    report: int


class MustExit(Exception):
    """This worker may do no more; `code` is its exit code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def main(settings: PoolSettings, post: Post) -> int:
    """The whole life of a worker process. Returns its exit code."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    events.subscribe(_print)
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
        self._slot = Slot(post.slot, new_token())
        self._app = App()
        self._connection: db.Connection | None = None
        self._woken = False

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
            step = self._step(task, outcome)
            task, outcome = step.claimed, None
            if task is not None:
                outcome = self._run(task)
            elif not step.stale:
                self._wait()
        self._say(Phase.STOPPING)

    # --- the four verbs of the loop

    def _step(self, task: Claimed | None, outcome: Outcome | None) -> Step:
        wanted = self._wanted()
        while True:
            try:
                step = hot.finish_and_claim(self._connected(), self._slot, task, outcome, wanted)
                break
            except (StatementRefused, NotStorable) as error:
                # Surely not done. The finish alone, then (in the next round) the claim alone.
                outcome = self._refused(outcome, error)
                wanted = hot.NOWHERE if task is not None else wanted
            except (InDoubt, DatabaseUnavailable):
                settled = self._settle(task)
                if settled is not None:
                    step = settled
                    break
        self._note(task, step)
        return step if wanted.queues else replace(step, stale=True)

    def _run(self, task: Claimed) -> Outcome:
        memory = self._post.memory
        self._pass_on_wake()
        self._say(Phase.HANDLING, task)
        outcome = executor.execute(self._app, task, lambda: memory.cancel_requested(task.id, task.fence))
        self._say(Phase.FINISHING, task)
        return outcome

    def _wait(self) -> None:
        """Sleep until there may be work, a drain, or the poll interval is over."""
        self._say(Phase.IDLE)
        ready, _, _ = select.select([self._post.wake, self._post.control], [], [], self._settings.poll_interval)
        self._woken = self._post.wake in ready and _take(self._post.wake)

    def _note(self, task: Claimed | None, step: Step) -> None:
        self._slot = step.slot
        if step.refused is Refusal.SLOT_ENDED:
            raise MustExit(EXIT_SLOT_ENDED, "its slot has ended: somebody proved this worker dead or its lease over")
        if step.refused is not None and task is not None:
            events.emit("a finish was refused", task=str(task.id), fence=task.fence, why=str(step.refused))
        if not step.trusted:
            time.sleep(min(1.0, self._settings.poll_interval))

    # --- what they need

    def _wanted(self) -> Wanted:
        if self._post.memory.drain:
            return hot.NOWHERE
        return Wanted(self._settings.queues, self._app.kinds)

    def _pass_on_wake(self) -> None:
        """One wake-up reaches one worker; the one that found work wakes the next, until one finds nothing."""
        if self._woken:
            os.eventfd_write(self._post.wake, 1)
            self._woken = False

    def _refused(self, outcome: Outcome | None, error: StatementRefused | NotStorable) -> Outcome | None:
        """What to send after a refusal. A result that cannot be stored is the task's failure, not the database's."""
        events.emit("a statement was refused", error=str(error))
        time.sleep(_FIRST_PAUSE)
        unstorable = isinstance(error, NotStorable) or error.sqlstate[:2] in _DATA_EXCEPTIONS
        if outcome is not None and outcome.result is not None and unstorable:
            return Outcome("failed", reason=f"result_not_storable: {executor.reason_of(error)}")
        return outcome

    def _settle(self, task: Claimed | None) -> Step | None:
        """What a statement without an answer really did; None: nothing, send it again.

        Nothing is judged and nothing sent again before the slot was taken over on a new connection.
        """
        old = self._connection.backend if self._connection else None
        while True:
            try:
                found = hot.settle(self._connected(), self._slot, task, old)
                break
            except StoreError as error:
                events.emit("a lost answer is not settled yet", error=str(error))
                time.sleep(_FIRST_PAUSE)
        if found.slot is None:
            return Step(self._slot, refused=Refusal.SLOT_ENDED)
        self._slot = found.slot
        if not found.happened:
            return None
        events.emit("a lost answer was settled by reading", task=str(task.id) if task else None)
        return Step(found.slot, claimed=found.claimed, stale=True)

    def _connected(self) -> db.Connection:
        """The connection; a new one as often as it takes, while the database is away. Raises MustExit at a drain
        when there is nothing in hand to commit.
        """
        pause = _FIRST_PAUSE
        while self._connection is None or not self._connection.usable:
            try:
                connection = db.connect(self._settings.database, f"deadsure worker {self._settings.name}")
                connection.identify(_BACKEND)
                self._connection = connection
            except StoreError as error:
                if pause == _FIRST_PAUSE:
                    events.emit("the worker waits for the database", error=str(error))
                self._pause_outside(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
        return self._connection

    def _pause_outside(self, seconds: float) -> None:
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
        except AppNotLoaded as error:
            self._post.memory.problem = str(error)
            raise MustExit(EXIT_APP_NOT_LOADED, str(error)) from error

    def _register(self) -> None:
        while True:
            try:
                connection = self._connected()
                pool.register_kinds(connection, self._app.kinds)
                mine = pool.register_slot(connection, self._slot, self._post.incarnation, self._post.number)
            except StoreError as error:
                events.emit("the worker cannot register yet", error=str(error))
                self._pause_outside(_FIRST_PAUSE)
                continue
            if not mine:
                raise MustExit(EXIT_SLOT_ENDED, "its incarnation has ended")
            return

    def _say(self, phase: Phase, task: Claimed | None = None) -> None:
        if task is None:
            self._post.memory.write_box(phase, self._slot.id, os.getpid())
        else:
            timed = phase is Phase.HANDLING and task.timeout is not None
            deadline = time.monotonic_ns() + int((task.timeout or 0) * 1e9) if timed else 0
            self._post.memory.write_box(phase, self._slot.id, os.getpid(), task.id, task.fence, deadline)


def _take(wake: int) -> bool:
    try:
        os.eventfd_read(wake)
    except BlockingIOError:
        return False
    return True


def _print(event: str, fields: dict[str, object]) -> None:
    said = " ".join(f"{name}={value}" for name, value in fields.items())
    os.write(2, f"{event} {said}\n".encode("utf-8", "backslashreplace"))

