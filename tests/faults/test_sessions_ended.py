"""Sessions that the server ends, one after the other and all at once: the next task starts as if nothing had been."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from kit.aftermath import entered, per_task
from kit.pool import Pool
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.faults
POLL = 0.5
#: Seconds beyond the poll interval after which a task has started, and what a busy machine may add.
MORE = 1.0
SLACK = 2.0
#: The announcer has one only while another host lives, and only when something is to be announced.
_OURS = "application_name like 'deadsure%' and application_name !~ 'announcer' and datname = current_database()"
_TICKS = os.sysconf("SC_CLK_TCK")


def _sessions(store: Store) -> dict[int, str]:
    """The product's sessions, by the pid of their backends."""
    rows = store.query(f"select pid, application_name as name from pg_stat_activity where {_OURS}")
    return {int(str(row["pid"])): str(row["name"]) for row in rows}


def _end(store: Store, pids: Iterable[int]) -> None:
    for pid in pids:
        assert store.query("select pg_terminate_backend(:pid, 5000) as ended", pid=pid)[0]["ended"]


def _starts_in_time(pool: Pool, store: Store, log: Path) -> float:
    """Submit a task and wait until its handler is entered. Returns how long that took."""
    began = time.monotonic()
    task = pool.submit("count.fail", {"log": str(log)})
    wait_until(lambda: per_task(entered(log))[task], "the task starts", POLL + MORE + SLACK)
    return time.monotonic() - began


def test_after_its_sessions_were_ended_a_task_starts_in_time(
    new_pool: Callable[..., Pool], store: Store, tmp_path: Path
) -> None:
    options = {"POOL_POLL_INTERVAL": str(POLL), "POOL_RENEW_EVERY": "0.5", "POOL_LEASE": "10"}
    pool = new_pool(workers=2, options=options).start()
    log = tmp_path / "log"
    first = _starts_in_time(pool, store, log)
    names = set(_sessions(store).values())
    assert {name.split()[1] for name in names} == {"api", "supervisor", "worker"}
    took = []
    for _ in range(count(long=20, ci=1)):
        sessions = list(_sessions(store))
        for ended in [*([pid] for pid in sessions), None]:
            _end(store, _sessions(store) if ended is None else ended)
            took.append(_starts_in_time(pool, store, log))
            wait_until(lambda: pool.get("/tasks").status == 200, "a list is answered", 1)
            wait_until(lambda: set(_sessions(store).values()) == names, "all are back", 10)
    print(f"before: {first:.2f} s; slowest of {len(took)}: {max(took):.2f} s")
    assert set(per_task(entered(log)).values()) == {1}
    assert {worker["exits"] for worker in pool.get("/workers").body["workers"]} == {0}
    assert store.query("select 1 as one from deadsure.events") == []
    assert pool.stop() == 0


def test_an_idle_supervisor_uses_next_to_no_processor_also_after_it_lost_its_sessions(
    new_pool: Callable[..., Pool], store: Store
) -> None:
    pool = new_pool(workers=2).start()
    _end(store, _sessions(store))
    wait_until(lambda: any("supervisor" in name for name in _sessions(store).values()), "its session is back")
    seconds = count(long=60, ci=3)
    before, began = _cpu(pool.pid), time.monotonic()
    time.sleep(seconds)
    share = (_cpu(pool.pid) - before) / (time.monotonic() - began)
    print(f"an idle supervisor: {share:.2%} of a processor over {seconds} s")
    assert share < 0.05


def _cpu(pid: int) -> float:
    """Seconds of processor time that it has used, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
