"""Many tasks, many workers, cancels and deaths at once: nobody waits for somebody who waits for him."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import pytest
from deadsure.runtime.ids import uuid7
from deadsure.runtime.store import cancel, submit
from kit.aftermath import settled
from kit.pool import Pool
from kit.scale import count
from kit.store import Store

pytestmark = pytest.mark.kills
TASKS = count(long=200_000, ci=8_000)
CHUNK = 500
KINDS = ("note", "note", "note", "count.fail")


def test_nothing_deadlocks(new_pool: Callable[..., Pool], store: Store) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    draw = random.Random(seed)
    pool = new_pool(workers=8).start()
    tasks: list[UUID] = []
    for number in range(TASKS // CHUNK):
        tasks += _submit(store, draw)
        for task in draw.sample(tasks[-CHUNK:], 20):
            cancel.cancel(store.connection, task, "test")
        if number % 8 == 0:
            with suppress(ProcessLookupError):
                os.kill(draw.choice(pool.worker_pids()), signal.SIGKILL)
    store.query("set statement_timeout = '5min'")  # the long count is many rows
    rows = settled(store, tasks, 900)
    assert {row["state"] for row in rows} <= {"succeeded", "canceled", "failed"}
    assert pool.stop() == 0  # with the sessions' ends the server has counted everything
    counted = store.query("select deadlocks from pg_stat_database where datname = current_database()")
    assert counted[0]["deadlocks"] == 0
    assert "deadlock" not in pool.log


def _submit(store: Store, draw: random.Random) -> list[UUID]:
    """So many tasks in one statement, of several kinds and priorities."""
    kinds = draw.choices(KINDS, k=CHUNK)
    asked = [submit.Submission(uuid7(), kind, "{}", priority=draw.choice((0, 0, 0, 1, 5))) for kind in kinds]
    verdicts = submit.submit(store.connection, asked)
    assert all(isinstance(verdict, submit.Accepted) for verdict in verdicts), verdicts[0]
    return [submission.id for submission in asked]
