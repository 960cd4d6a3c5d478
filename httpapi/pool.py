"""The bounded pool of lanes: who waits for the database waits within a deadline, and the event loop never blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..metrics.api import ApiCounter
from ..runtime import db
from ..runtime.errors import DatabaseUnavailable, InDoubt
from .lane import WORTH_TRYING, Lane

T = TypeVar("T")

#: The thread's own deadlines end first; this only catches a server that trickles its answer.
GRACE = 0.1


class PoolSaturated(DatabaseUnavailable):
    """Every connection was in use until the request's time was spent; nothing was sent."""


class Pool:
    """`size` lanes, each with a thread. For one event loop, in the process that made it."""

    def __init__(self, settings: db.Settings, size: int, name: str, counter: ApiCounter) -> None:
        self.size = size
        self._counter = counter
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
        try:
            # Whoever got one later could not use it any more.
            async with asyncio.timeout(max(0.0, deadline - WORTH_TRYING - began)):
                await self._free.acquire()
        except TimeoutError:
            self._counter.timed_out()
            raise PoolSaturated("every database connection is in use; nothing was sent") from None
        finally:
            self._counter.waited(time.monotonic() - began)
        lane = self._idle.pop()
        self._counter.in_use(self.in_use)
        return lane

    def _give_back(self, lane: Lane, future: asyncio.Future[T]) -> None:
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not complain about the abandoned ones
        self._idle.append(lane)
        self._counter.in_use(self.in_use)
        self._free.release()
