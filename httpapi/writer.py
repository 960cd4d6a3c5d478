"""The submit writer: one thread that turns concurrent submits into one INSERT per flush (group commit).

While a flush is under way the next requests gather; they are the next flush. Its statements wait for a lock only a
moment: a flush that met an error or a lock wait stores nothing, and each of its tasks is then sent alone through the
pool, so that one bad or blocked request fails nobody else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..runtime import db
from ..runtime.errors import DeadsureError, InDoubt, StatementRefused, StoreError
from ..runtime.store.submit import Accepted, Submission, Verdict, submit
from .lane import Lane
from .pool import GRACE, Pool, PoolSaturated

#: Bounds of one flush, and of what may wait for the next one.
MAX_TASKS = 500
MAX_BYTES = 4 * 1024 * 1024
MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024

#: Seconds for which a flush waits for a lock before its tasks are sent one by one.
LOCK_TIMEOUT = 0.05


class _SentBack(DeadsureError):
    """The flush stored nothing; the task must be sent alone."""


@dataclass(slots=True)
class _Waiting:
    task: Submission
    began: float
    deadline: float
    future: asyncio.Future[Accepted] = field(repr=False)

    def too_late(self, now: float) -> bool:
        """Whether so much of its time was spent in the queue that a flush with it would be in a hurry."""
        return self.deadline - now < (self.deadline - self.began) / 4


class Writer:
    """Started with its first submit. For one event loop, in the process that made it.

    `committed` is called in the thread after each commit that stored something.
    """

    def __init__(self, settings: db.Settings, pool: Pool, committed: Callable[[], None]) -> None:
        self._lane = Lane(replace(settings, lock_timeout=LOCK_TIMEOUT), "deadsure api writer")
        self._pool = pool
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._something = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()

    async def submit(self, task: Submission, deadline: float) -> Accepted:
        """Store one task; returns after the commit.

        Raises UnknownKind, BudgetExceeded or KeyTaken (it was not stored), and what Pool.run raises.
        """
        waiting = _Waiting(task, time.monotonic(), deadline, self._loop.create_future())
        self._put(waiting)
        try:
            async with asyncio.timeout(deadline - time.monotonic() + GRACE):
                return await waiting.future
        except TimeoutError:
            raise InDoubt("the database did not answer within the request's time") from None
        except _SentBack:
            return await self._alone(task, deadline)

    async def _alone(self, task: Submission, deadline: float) -> Accepted:
        verdict = (await self._pool.run(lambda connection: submit(connection, [task]), deadline))[0]
        if not isinstance(verdict, Accepted):
            raise verdict
        self._committed()
        return verdict

    def _put(self, waiting: _Waiting) -> None:
        with self._something:
            size = self._waiting_bytes + len(waiting.task.payload)
            if len(self._waiting) >= MAX_WAITING or size > MAX_WAITING_BYTES:
                raise PoolSaturated("too many submits wait for the database; nothing was sent")
            self._waiting.append(waiting)
            self._waiting_bytes = size
            self._something.notify()

    def _write(self) -> None:
        while True:
            taken = self._take()
            try:
                answers = self._flush(taken)
            except Exception as error:  # noqa: BLE001  the thread must outlive a bug; its requests are answered with it
                answers = [error] * len(taken)
            try:
                self._loop.call_soon_threadsafe(_tell, taken, answers)
            except RuntimeError:
                return  # the loop is closed: the process is about to end

    def _take(self) -> list[_Waiting]:
        with self._something:
            self._something.wait_for(lambda: self._waiting)
            taken: list[_Waiting] = []
            size = 0
            while self._waiting and len(taken) < MAX_TASKS and size < MAX_BYTES:
                taken.append(self._waiting.popleft())
                size += len(taken[-1].task.payload)
            self._waiting_bytes -= size
            return taken

    def _flush(self, taken: list[_Waiting]) -> list[Verdict | Exception]:
        now = time.monotonic()
        sent = [waiting for waiting in taken if not waiting.too_late(now)]
        answers = dict(zip(map(id, sent), self._store(sent), strict=True)) if sent else {}
        late = PoolSaturated("the request's time was spent waiting for the database; nothing was sent")
        return [answers.get(id(waiting), late) for waiting in taken]

    def _store(self, sent: list[_Waiting]) -> list[Verdict | Exception]:
        tasks = [waiting.task for waiting in sent]
        try:
            verdicts = self._lane.do(lambda c: submit(c, tasks), min(waiting.deadline for waiting in sent))
        except StatementRefused as error:
            return [_SentBack(str(error))] * len(sent)
        except StoreError as error:
            return [error] * len(sent)
        if any(isinstance(verdict, Accepted) for verdict in verdicts):
            self._committed()
        return list(verdicts)


def _tell(taken: list[_Waiting], answers: list[Verdict | Exception]) -> None:
    for waiting, answer in zip(taken, answers, strict=True):
        if waiting.future.done():
            continue  # the client has gone
        if isinstance(answer, Accepted):
            waiting.future.set_result(answer)
        else:
            waiting.future.set_exception(answer)
