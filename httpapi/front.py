"""What every endpoint works with, made once when the api child starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from starlette.requests import Request

from .. import __version__
from ..metrics import collector
from ..metrics.api import ApiCounter
from ..metrics.exposition import Exposition
from ..metrics.memory import MetricsMemory
from ..runtime import events
from ..runtime.blackbox import PoolMemory
from .announcing import Announcer
from .application import Application
from .pool import Pool
from .settings import ApiSettings
from .waiting import Waiters
from .writer import Writer


@dataclass(frozen=True, slots=True)
class Front:
    """`wake_workers` tells idle workers, here and on other hosts, that something was committed: a hint, they also look
    themselves.
    """

    settings: ApiSettings
    memory: PoolMemory
    application: Application
    pool: Pool
    writer: Writer
    waiters: Waiters
    counter: ApiCounter
    exposition: Exposition
    wake_workers: Callable[[], None]

    def deadline(self) -> float:
        """When a request whose body has come in must have been answered (time.monotonic)."""
        return time.monotonic() + self.settings.request_budget


def make(
    settings: ApiSettings, memory: PoolMemory, application: Application, wake: int, metrics: MetricsMemory, number: int
) -> Front:
    """The Front of this process, which counts in the metrics' page of this number. Call it in the event loop."""
    counter = ApiCounter(metrics, number, settings.db_connections)
    events.count(counter)
    told = collector.Pool(settings.pool, settings.workers, __version__)
    # A statement ends before the request that waits for it: the server's answer is better than a doubt.
    longest = min(settings.database.statement_timeout, 0.75 * settings.request_budget)
    database = replace(settings.database, statement_timeout=longest)
    pool = Pool(database, settings.db_connections, "deadsure api", counter)
    announcer = Announcer(database, memory)

    def wake_workers() -> None:
        with suppress(BlockingIOError):
            os.write(wake, (1).to_bytes(8, "little"))
        announcer.committed()

    return Front(
        settings=settings,
        memory=memory,
        application=application,
        pool=pool,
        writer=Writer(database, pool, wake_workers),
        waiters=Waiters(pool, settings.max_waiters, settings.request_budget),
        counter=counter,
        exposition=Exposition(collector.Collector(told, memory, metrics)),
        wake_workers=wake_workers,
    )


def front(request: Request) -> Front:
    """The Front of the app that serves this request."""
    found = request.app.state.front
    assert isinstance(found, Front)
    return found
