"""An asynchronous standby that is promoted without the last commits: what is lost, and what is kept all the same."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadsure.runtime.effects import key_for
from kit import cluster, reckoning
from kit.cluster import Pair
from kit.pool import Pool
from kit.site import SOON, site, until_renewed
from kit.wait import wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def pair() -> Iterator[Pair]:
    with cluster.pair(synchronous=False) as made:
        yield made


def test_what_it_has_missed_is_lost_and_still_no_key_is_performed_twice(pair: Pair, tmp_path: Path) -> None:
    """The loss is PostgreSQL's. What deadsure keeps is that nothing is done twice, and that nobody is stuck."""
    with site(pair, tmp_path) as running:
        clients, supervisor = running.traffic, running.pool.pid
        with clients.flowing():
            wait_until(lambda: clients.statuses("POST")[202] > 20, "it flows")
            pair.cut()
            began = time.monotonic()
            wait_until(lambda: clients.since(began, "POST")[202] > 30, "it acknowledges what the standby misses")
            pair.primary.kill()
            pair.promote()
            running.works_again(time.monotonic())
        clients.check(read=(200, 404, 503))
        reckoning.settled(running.now)
        with reckoning.asking(running.now) as ask:
            rows = {str(id): state for id, state in ask("select id, state from deadsure.tasks")}
        effects = running.ledger.history.effects
        reckoning.check_effects(running.now, running.ledger.history)
        lost = [id for id in clients.acknowledged if id not in rows]
        assert len(lost) > 10, "the loss was to be shown"
        assert not [id for id, state in rows.items() if state == "failed" and effects[key_for(id)]], "done, and failed"
        assert running.pool.pid == supervisor
        assert running.pool.stop() == 0
    performed = [id for id in lost if effects[key_for(id)]]
    print(
        f"{len(clients.acknowledged)} acknowledged, {len(lost)} of them lost ({len(performed)} had been performed),"
        f" {effects.total()} effects, now {dict(Counter(rows.values()))}"
    )


def test_a_worker_does_not_run_again_what_it_had_finished(pair: Pair, tmp_path: Path) -> None:
    """The standby misses that the first task was finished and the second claimed: there its slot names the first."""
    both = cluster.on_both(cluster.with_schema(pair.primary), pair)
    with cluster.pool(both, options={"POOL_RENEW_EVERY": "20"}) as pool:
        pool.start()
        tasks = [_blocked(pool, tmp_path, name) for name in ("first", "second")]
        pool.wait_for(tasks[0], "running")
        pair.cut()
        (tmp_path / "first").touch()
        pool.wait_for(tasks[1], "running")
        pair.primary.kill()
        pair.promote()
        (tmp_path / "second").touch()
        first = pool.wait_for(tasks[0], "unknown", "succeeded")
        pool.wait_for(tasks[1], "succeeded")
        assert first["state"] == "unknown"
        assert (first["unknown"]["cause"], first["unknown"]["proof"]) == ("worker_died", "exit")
        log = (tmp_path / "log").read_text().splitlines()
        begun = Counter(line.split()[1] for line in log if line.startswith("start"))
        assert begun == {tasks[0]: 1, tasks[1]: 2}  # that the second one was claimed nobody knows any more
        wait_until(pool.is_ready, "ready", SOON)
        assert pool.stop() == 0


def test_a_recovery_that_it_has_missed_is_committed_again(pair: Pair, tmp_path: Path) -> None:
    both = cluster.on_both(cluster.with_schema(pair.primary), pair)
    with cluster.pool(both, options={"POOL_RENEW_EVERY": "5"}) as pool:
        pool.start()
        task = _blocked(pool, tmp_path, "never")
        pool.wait_for(task, "running")
        until_renewed(cluster.only(both, pair.primary))  # the next renewal comes when all this is over
        pair.cut()
        os.kill(pool.worker_pids()[0], signal.SIGKILL)
        before = pool.wait_for(task, "unknown")["unknown"]
        pair.primary.kill()
        pair.promote()
        after = pool.wait_for(task, "unknown", deadline=2 * SOON)["unknown"]
        for name in ("cause", "proof", "signal", "phase"):
            assert after[name] == before[name]
        assert "the database has lost a recovery" in pool.log


def _blocked(pool: Pool, folder: Path, name: str) -> str:
    return pool.submit("block.unknown", {"go": str(folder / name), "log": str(folder / "log")})
