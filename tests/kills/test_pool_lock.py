"""The pool lock with real processes: what it proves, and what it does not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.pool import Pool, alive, new_runtime_dir
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
NewPool = Callable[..., Pool]
SHORT = {"POOL_LEASE": "3", "POOL_RENEW_EVERY": "0.5"}


def _killed_while_running(new_pool: NewPool, tmp_path: Path, kind: str = "block.fail") -> tuple[Pool, str]:
    pool = new_pool(options=SHORT).start()
    task = pool.submit(kind, {"go": str(tmp_path / "never"), "pids": str(tmp_path / "pids")})
    pool.wait_for(task, "running")
    if kind != "block.fail":
        wait_until(lambda: (tmp_path / "pids").exists(), "it has started its process")
    return pool, task


def test_a_copied_lock_file_proves_nothing(new_pool: NewPool, tmp_path: Path) -> None:
    pool, task = _killed_while_running(new_pool, tmp_path)
    pool.kill_all()
    elsewhere = new_runtime_dir()
    shutil.copy(pool.runtime_dir / "default.pool", elsewhere / "default.pool")
    other = new_pool(runtime_dir=elsewhere, options=SHORT).start()
    assert "failed=0 unknown=0" in other.log
    assert other.wait_for(task, "failed")["failure_reason"] == "lease expired before worker completion"


def test_a_removed_runtime_directory_leaves_the_old_pool_to_its_lease(new_pool: NewPool, tmp_path: Path) -> None:
    pool, task = _killed_while_running(new_pool, tmp_path)
    pool.kill_all()
    (pool.runtime_dir / "default.pool").unlink()
    pool.start()
    assert pool.wait_for(task, "failed")["failure_reason"] == "lease expired before worker completion"


def test_a_daemonised_holder_is_named_waited_for_and_then_left_behind(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    pool, task = _killed_while_running(new_pool, tmp_path, "daemonise")
    (daemon,) = (int(pid) for pid in (tmp_path / "pids").read_text().split())
    try:
        pool.kill_all()
        assert alive(daemon)
        pool.start(ready=False)
        wait_until(lambda: f"{daemon} (" in pool.log, "the holder is named")
        wait_until(lambda: "going on under a new pool lock" in pool.log, "it goes on after the leases are over")
        assert pool.wait_for(task, "failed")["failure_reason"] == "lease expired before worker completion"
        assert alive(daemon)
        wait_until(pool.is_ready, "ready")
        pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")
        pool.kill_all()
        pool.start()
        assert pool.log.count("going on under a new pool lock") == 1
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_program_that_a_handler_executed_does_not_hold_the_lock(new_pool: NewPool, tmp_path: Path) -> None:
    pool, task = _killed_while_running(new_pool, tmp_path, "leave.behind.long")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    try:
        pool.kill_all()
        assert all(alive(pid) for pid in pids)
        pool.start()
        assert pool.task(task)["failure_reason"] == "process exited before worker completion"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_file_system_whose_locks_are_not_local_is_refused(new_pool: NewPool, tmp_path: Path) -> None:
    sshfs = shutil.which("bindfs")
    if sshfs is None:
        pytest.skip("bindfs (a FUSE file system) is not installed")
    pool = new_pool()
    folder = tmp_path / "fuse"
    folder.mkdir()
    subprocess.run([sshfs, str(pool.runtime_dir), str(folder)], check=True)
    try:
        pool.options["POOL_RUNTIME_DIR"] = str(folder)
        pool.start(ready=False)
        assert pool.process is not None
        assert pool.process.wait(20) == 78
        assert "lies on FUSE" in pool.log
    finally:
        subprocess.run(["umount", str(folder)], check=True)
