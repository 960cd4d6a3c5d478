"""Starting and stopping at the same moment: several hosts at once, and signals in the middle of a start."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from kit import postgres
from kit.pool import SOURCE, Pool, alive
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
NewPool = Callable[..., Pool]


@pytest.mark.parametrize("round", range(count(long=20, ci=5)))
def test_five_hosts_that_migrate_an_empty_database_at_once_all_succeed(server: EmbeddedPostgres, round: int) -> None:
    with postgres.database(server) as address:
        environment = dict(os.environ) | {"PYTHONPATH": str(SOURCE), "DEADSURE_DATABASE_DSN": address}
        command = [sys.executable, "-m", "deadsure", "migrate"]
        hosts = [subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) for _ in range(5)]
        said = [host.communicate(timeout=60) for host in hosts]
        assert [host.returncode for host in hosts] == [0] * 5, said
        connection = db.connect(db.Settings(dsn.parse(address)), "test")
        numbers = [row[0] for row in connection._driver.run("select number from deadsure.migrations order by number")]
        connection.close()
        assert numbers == list(range(1, len(numbers) + 1))


def test_five_supervisors_started_at_once_on_one_database_all_become_ready(new_pool: NewPool) -> None:
    pools = [new_pool().start(ready=False) for _ in range(5)]
    for pool in pools:
        wait_until(pool.is_ready, "ready", 40)
        assert "Traceback" not in pool.log


def test_a_term_at_any_moment_of_the_start_leaves_no_child(new_pool: NewPool) -> None:
    dice = random.Random(19)
    for _ in range(count(long=100, ci=12)):
        pool = new_pool(workers=2).start(ready=False)
        assert pool.process is not None
        seen: set[int] = set()
        try:
            pool.process.wait(dice.random() * 0.8)
        except subprocess.TimeoutExpired:
            seen = set(pool.children())
            pool.process.terminate()
        code = pool.process.wait(30)
        # Before Python has reached our handlers the signal's default applies.
        assert code in (0, -signal.SIGTERM), pool.log
        wait_until(lambda seen=seen: not any(alive(pid) for pid in seen), "no child survives")  # type: ignore[misc]


def test_impatient_signals_during_a_task_settle_it(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    pool = new_pool().start()
    pool.submit("block.unknown", {"go": str(tmp_path / "never"), "log": str(tmp_path / "log")})
    log = tmp_path / "log"
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "its handler has begun")
    assert pool.process is not None
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        pool.process.send_signal(number)
    assert pool.process.wait(30) == 0
    row = store.query("select state, unknown_cause, attempts from deadsure.tasks")[0]
    assert row == {"state": "unknown", "unknown_cause": "shutdown", "attempts": 1}
    assert len(log.read_text().splitlines()) == 1


def test_a_task_that_kills_every_worker_spends_its_budget_and_the_others_run(
    new_pool: NewPool, tmp_path: Path
) -> None:
    pool = new_pool().start()
    log = tmp_path / "log"
    poison = pool.submit("die", {"log": str(log)}, priority=-1)
    once = pool.submit("die", {"log": str(log)}, priority=-1, max_attempts=1)
    others = [pool.submit("note", {"log": str(log)}) for _ in range(20)]
    for _ in range(2):
        pool.kill_all()
        pool.start()
    for id in others:
        pool.wait_for(id, "succeeded")
    assert pool.wait_for(poison, "failed")["attempts"] == 3
    assert pool.wait_for(once, "failed")["attempts"] == 1
    runs = [line.split()[1] for line in log.read_text().splitlines()]
    assert runs.count(poison) <= 3
    assert runs.count(once) <= 1
