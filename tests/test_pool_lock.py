"""The pool lock by itself: who has it, and under which name."""

from __future__ import annotations

import os
from pathlib import Path

from deadsure.supervisor.pool_lock import PoolLock


def test_a_lock_that_somebody_holds_is_not_taken_and_is_free_with_its_last_holder(tmp_path: Path) -> None:
    first, second = PoolLock(tmp_path / "a.pool"), PoolLock(tmp_path / "a.pool")
    inherited = os.dup(first.fd)  # as a fork has it
    assert first.take()
    assert not second.take()
    os.close(first.fd)
    assert not second.take()
    os.close(inherited)
    assert second.take()
    assert second.held


def test_everybody_who_holds_one_file_has_one_identity_and_a_copy_has_another(tmp_path: Path) -> None:
    lock = PoolLock(tmp_path / "a.pool")
    lock.take()
    mine = lock.identity()
    assert PoolLock(tmp_path / "a.pool").identity() == mine
    (tmp_path / "b.pool").write_bytes((tmp_path / "a.pool").read_bytes())
    copy = PoolLock(tmp_path / "b.pool").identity()
    assert copy.id == mine.id
    assert copy != mine
