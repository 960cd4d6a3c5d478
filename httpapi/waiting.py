"""Waiting for a task to change: however many wait, one small statement a tick asks for all of them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from uuid import UUID

from ..runtime.errors import StoreError
from ..runtime.states import State
from ..runtime.store import read
from .pool import Pool
from .problems import Problem

#: Seconds between two looks while anybody waits.
TICK = 0.05
#: Seconds until the next look when the database did not answer.
AWAY = 0.5

Enough = Callable[[State, int], bool]


class Waiters:
    """At most `most` requests wait at a time. For one event loop."""

    def __init__(self, pool: Pool, most: int, budget: float) -> None:
        self._pool = pool
        self._most = most
        self._budget = budget
        self._waiting: dict[UUID, list[tuple[Enough, asyncio.Event]]] = defaultdict(list)
        self._count = 0
        self._looking: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    async def wait(self, id: UUID, enough: Enough, seconds: float, gone: asyncio.Event) -> None:
        """Returns when `enough(state, version)`, after `seconds`, when the client has `gone`, or at the drain.

        Raises Problem (429) when too many wait already. Database trouble only makes it wait on.
        """
        if self._count >= self._most:
            raise Problem(
                429, "too-many-waiters", f"{self._most} requests wait already; ask again without Prefer: wait"
            )
        if seconds <= 0:
            return
        entry = (enough, asyncio.Event())
        self._waiting[id].append(entry)
        self._count += 1
        self._look_out()
        try:
            await _first_of(seconds, entry[1], gone, self._stopped)
        finally:
            self._count -= 1
            self._waiting[id].remove(entry)
            if not self._waiting[id]:
                del self._waiting[id]

    def stop(self) -> None:
        """Let everybody go, now and from now on: the server drains."""
        self._stopped.set()

    def _look_out(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(TICK)
            ids = list(self._waiting)
            try:
                found = await self._pool.run(partial(read.versions, ids=ids), time.monotonic() + self._budget)
            except StoreError:
                await asyncio.sleep(AWAY)
                continue
            for id in ids:
                self._tell(id, found)

    def _tell(self, id: UUID, found: dict[UUID, tuple[State, int]]) -> None:
        for enough, event in self._waiting.get(id, ()):
            # A task that is not there any more was pruned: the final read will say so.
            if id not in found or enough(*found[id]):
                event.set()


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
