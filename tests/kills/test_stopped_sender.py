"""A worker that is stopped around its call, swept, and goes on: at most one effect, and its finish is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.pool import Pool
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
NewPool = Callable[..., Pool]
SHORT = {"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4", "POOL_POLL_INTERVAL": "0.2"}


def _stopped_at(new_pool: NewPool, folder: Path, gate: str) -> tuple[Pool, int, str]:
    """A pool whose only worker stands at the gate, stopped together with its supervisor; and the task."""
    (folder / f"{gate}.closed").touch()
    pool = new_pool(options=SHORT).start()
    task = pool.submit("pay", {"folder": str(folder)})
    wait_until(lambda: (folder / f"{gate}.reached").exists(), f"it has reached the gate {gate!r}")
    worker = pool.worker_pids()[0]
    for pid in (pool.pid, worker):
        os.kill(pid, signal.SIGSTOP)
    (folder / f"{gate}.closed").unlink()
    return pool, worker, task


def _go_on(pool: Pool, worker: int) -> None:
    """The worker first, so that it acts before its supervisor has learned that the lease is lost."""
    os.kill(worker, signal.SIGCONT)
    wait_until(lambda: Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "T", "it runs again")


def _calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_stopped_before_the_check_it_makes_no_call(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    pool, worker, task = _stopped_at(new_pool, tmp_path, "intent")
    other = new_pool(options=SHORT).start()
    done = other.wait_for(task, "succeeded", deadline=30)
    assert (done["attempts"], len(_calls(tmp_path))) == (2, 1)
    before = store.query("select * from deadsure.tasks")
    _go_on(pool, worker)
    os.kill(pool.pid, signal.SIGCONT)
    wait_until(lambda: worker not in pool.worker_pids() and pool.get("/readyz").status == 200, "it comes back anew", 30)
    assert len(_calls(tmp_path)) == 1
    assert store.query("select * from deadsure.tasks") == before


def test_stopped_after_the_check_its_call_has_the_same_key_and_there_is_one_effect(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    pool, worker, task = _stopped_at(new_pool, tmp_path, "perform")
    other = new_pool(options=SHORT).start()
    done = other.wait_for(task, "succeeded", deadline=30)
    assert done["attempts"] == 2
    before = store.query("select * from deadsure.tasks")
    _go_on(pool, worker)
    wait_until(lambda: len(_calls(tmp_path)) == 2, "the old call is made")
    os.kill(pool.pid, signal.SIGCONT)
    wait_until(lambda: worker not in pool.worker_pids() and pool.get("/readyz").status == 200, "it comes back anew", 30)
    (new_key, new_fence), (old_key, old_fence) = (line.split() for line in _calls(tmp_path))
    assert old_key == new_key == f"deadsure-{task}"
    assert int(old_fence) < int(new_fence)
    assert len((tmp_path / "effects").read_text().splitlines()) == 1
    assert store.query("select * from deadsure.tasks") == before
