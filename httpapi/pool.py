"""The bounded pool of lanes: who waits for the database waits within a deadline, and the event loop never blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..runtime import db
from ..runtime.errors import DatabaseUnavailable, InDoubt
from .lane import Lane

T = TypeVar("T")

#: The thread's own deadlines end first; this only catches a server that trickles its answer.
GRACE = 0.1


class PoolSaturated(DatabaseUnavailable):
    """Every connection was in use until the request's time was spent; nothing was sent."""


class Pool:
    """`size` lanes, each with a thread. For one event loop, in the process that made it.

    Saturation, for whoever measures: `size`, `in_use`, `waiting`, `waits` (finished ones), `waited` (their seconds)
    and `timeouts`.
    """

    def __init__(self, settings: db.Settings, size: int, name: str) -> None:
        self.size = size
        self.waiting = 0
        self.waits = 0
        self.waited = 0.0
        self.timeouts = 0
        self._idle = [Lane(settings, name) for _ in range(size)]
        self._free = asyncio.Semaphore(size)
        self._threads = ThreadPoolExecutor(size, "database")

    @property
    def in_use(self) -> int:
        return self.size - len(self._idle)

    async def run(self, work: Callable[[db.Connection], T], deadline: float) -> T:
        """Carry out repeatable `work` in a thread before `deadline` (time.monotonic).

        Raises what Lane.do raises, and PoolSaturated.
        """
        lane = await self._take(deadline)
        running = asyncio.get_running_loop().run_in_executor(self._threads, lane.do, work, deadline)
        # The lane comes back when its thread is done with it, also when nobody waits for that any more.
        running.add_done_callback(lambda future: self._give_back(lane, future))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic()) + GRACE):
                return await asyncio.shield(running)
        except TimeoutError:
            raise InDoubt("the database did not answer within the request's time") from None

    def close(self) -> None:
        """Let the threads end. The server ends the sessions when the process does."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take(self, deadline: float) -> Lane:
        began = time.monotonic()
        self.waiting += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - began)):
                await self._free.acquire()
        except TimeoutError:
            self.timeouts += 1
            raise PoolSaturated("every database connection is in use; nothing was sent") from None
        finally:
            self.waiting -= 1
            self.waits += 1
            self.waited += time.monotonic() - began
        return self._idle.pop()

    def _give_back(self, lane: Lane, future: asyncio.Future[T]) -> None:
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not complain about the abandoned ones
        self._idle.append(lane)
        self._free.release()
