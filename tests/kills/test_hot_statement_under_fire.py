"""The hot statement under fire: workers killed at random moments, tasks canceled beside them, nothing stuck."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime.store import cancel
from kit import postgres
from kit.pool import Pool
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
KINDS = ("words", "note", "block.unknown")


@dataclass
class Fire:
    """Keeps the queue filled, kills workers and cancels tasks until enough were killed."""

    pool: Pool
    store: Store
    go: Path
    wanted: int
    seed: int
    killed: int = 0
    submitted: list[UUID] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        dice = random.Random(self.seed)
        while self.killed < self.wanted:
            self._fill(dice)
            if dice.random() < 0.5:
                cancel.cancel(self.store.connection, dice.choice(self.submitted[-50:]), "test")
            workers = self.pool.get("/workers").body["workers"]
            busy = [w["pid"] for w in workers if w["pid"] and w["state"] in ("idle", "busy")]
            if busy:
                self.over.wait(dice.random() * 0.01)  # so that the kill lands anywhere in the statement
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(busy), signal.SIGKILL)
                    self.killed += 1

    def _fill(self, dice: random.Random) -> None:
        waiting = self.store.query("select count(*) as n from deadsure.ready")[0]["n"]
        for _ in range(max(0, 40 - int(str(waiting)))):
            kind = dice.choice(KINDS)
            payload = f'{{"text": "a b", "go": "{self.go}"}}'
            self.submitted.append(self.store.submit(kind, payload))


def test_nothing_is_stuck_and_nothing_deadlocks(
    new_pool: Callable[..., Pool], store: Store, server: EmbeddedPostgres, tmp_path: Path
) -> None:
    quiet_from = len(postgres.server_log(server))
    pool = new_pool(workers=4, options={"POOL_POLL_INTERVAL": "0.1"}).start()
    go = tmp_path / "go"
    go.touch()
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    fire = Fire(pool, store, go, count(long=3000, ci=300), seed)
    fire.run()

    wait_until(lambda: not _open(store), f"every task leaves queued and running (seed {seed})", 120)
    assert _running_without_a_slot(store) == []
    assert _queued_outside_ready_and_scheduled(store) == []
    assert "deadlock detected" not in postgres.server_log(server)[quiet_from:]
    spent = store.query("select 1 as one from deadsure.tasks where attempts > max_attempts")
    assert spent == []
    states = {str(row["state"]) for row in store.query("select distinct state from deadsure.tasks")}
    assert {"succeeded", "canceled"} <= states
    assert store.query("select 1 as one from deadsure.events where event = 'recovered' limit 1"), "no kill hit a task"
    assert pool.stop() == 0
    print(f"{fire.killed} kills, {len(fire.submitted)} tasks")


def _open(store: Store) -> list[dict[str, object]]:
    return store.query("select id, state from deadsure.tasks where state in ('queued', 'running') limit 5")


def _running_without_a_slot(store: Store) -> list[dict[str, object]]:
    return store.query(
        "select t.id from deadsure.tasks t left join deadsure.slots s on s.slot = t.owner"
        " where t.state = 'running' and (s.slot is null or s.ended or not t.id = any(s.task_ids))"
    )


def _queued_outside_ready_and_scheduled(store: Store) -> list[dict[str, object]]:
    return store.query(
        "select t.id from deadsure.tasks t where t.state = 'queued'"
        " and not exists (select 1 from deadsure.ready r where r.id = t.id)"
        " and not exists (select 1 from deadsure.scheduled s where s.id = t.id)"
    )
