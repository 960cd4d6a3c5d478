"""Starts, stops and reloads: what the supervisor does with applications that cannot start, and with its children."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.pool import Pool, alive
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

NewPool = Callable[..., Pool]

APP = """
from deadsure import App
app = App()

@app.task("version", on_death="fail")
def version(payload):
    return {number}

@app.task("block", on_death="unknown")
def block(payload):
    import pathlib, time
    while not pathlib.Path(payload["go"]).exists():
        time.sleep(0.01)
    return {number}
"""


def _app_pool(new_pool: NewPool, folder: Path, source: str, **settings: object) -> Pool:
    (folder / "myapp.py").write_text(source)
    options = {"APP_DIR": str(folder), **settings.pop("options", {})}  # type: ignore[dict-item]
    pool: Pool = new_pool(app="myapp:app", options=options, **settings)
    return pool


def test_hup_replaces_the_workers_one_by_one_with_new_code(new_pool: NewPool, tmp_path: Path) -> None:
    pool = _app_pool(new_pool, tmp_path, APP.format(number=1), workers=2).start()
    wait_until(lambda: len(pool.worker_pids()) == 2, "two workers")
    before = set(pool.worker_pids())
    running = pool.submit("block", {"go": str(tmp_path / "go")})
    pool.wait_for(running, "running")
    (tmp_path / "myapp.py").write_text(APP.format(number=2))
    os.kill(pool.pid, signal.SIGHUP)
    (tmp_path / "go").touch()
    assert pool.wait_for(running, "succeeded")["result"] == 1
    wait_until(lambda: "the application was reloaded" in pool.log, "reloaded")
    wait_until(lambda: len(pool.worker_pids()) == 2 and not before & set(pool.worker_pids()), "two new workers")
    assert pool.wait_for(pool.submit("version"), "succeeded")["result"] == 2


def test_hup_with_code_that_cannot_be_imported_keeps_the_old_workers(new_pool: NewPool, tmp_path: Path) -> None:
    pool = _app_pool(new_pool, tmp_path, APP.format(number=1)).start()
    before = pool.worker_pids()
    (tmp_path / "myapp.py").write_text("import nothing_like_this")
    os.kill(pool.pid, signal.SIGHUP)
    wait_until(lambda: "the reload was given up; the old workers stay" in pool.log, "given up")
    wait_until(lambda: pool.worker_pids() == before, "only the old worker is there")
    assert alive(before[0])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
)
def test_an_application_that_cannot_start_leaves_its_tasks_untouched(
    new_pool: NewPool, store: Store, tmp_path: Path, source: str, reason: str
) -> None:
    task = store.submit("plain")
    other = store.submit("plain")
    pool = _app_pool(new_pool, tmp_path, source).start(ready=False)
    wait_until(lambda: pool.get("/livez").status == 200, "it lives")
    said = wait_until(lambda: _last_exit(pool), "the reason is told")
    assert reason in said
    assert pool.get("/readyz").status == 503
    assert pool.task(str(task))["attempts"] == 0
    assert pool.post(f"/tasks/{other}/cancel").body["state"] == "canceled"
    assert pool.post("/tasks", {"kind": "plain", "payload": {}}).status == 503
    assert pool.get("/livez").status == 200
    assert reason in pool.log
    assert store.row(task)["state"] == "queued"


def _last_exit(pool: Pool) -> str:
    return next((w["last_exit"] for w in _workers(pool) if w["last_exit"]), "")


def _workers(pool: Pool) -> list[dict[str, str]]:
    answer = pool.get("/workers")
    return answer.body["workers"] if answer.status == 200 else []


def test_a_worker_that_does_not_become_ready_in_time_is_killed(new_pool: NewPool, tmp_path: Path) -> None:
    source = "import time\ntime.sleep(60)\n"
    pool = _app_pool(new_pool, tmp_path, source, options={"POOL_START_TIMEOUT": "0.5"}).start(ready=False)
    wait_until(lambda: "a worker did not become ready in time" in pool.log, "it is killed")
    wait_until(lambda: "SIGKILL" in str(_workers(pool)), "and the reason is told")


def test_what_a_dead_worker_left_behind_is_gone_before_the_recovery_is_committed(
    new_pool: NewPool, tmp_path: Path
) -> None:
    pool = new_pool().start()
    late = tmp_path / "late"
    task = pool.submit("leave.behind", {"file": str(late), "pids": str(tmp_path / "pids")})
    pool.wait_for(task, "running")
    pids = wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split(), "grandchildren")
    assert len(pids) == 2
    os.kill(pool.worker_pids()[0], signal.SIGKILL)
    pool.wait_for(task, "failed")
    assert not any(alive(int(pid)) for pid in pids)
    assert not late.exists()


def test_an_orphan_of_a_living_worker_is_left_alone(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(workers=2).start()
    orphaned = pool.submit("orphan", {"pids": str(tmp_path / "pids"), "go": str(tmp_path / "go")})
    pool.wait_for(orphaned, "running")
    pids = wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split(), "an orphan")
    victim = pool.submit("block.fail", {"go": str(tmp_path / "never")})
    pool.wait_for(victim, "running")
    os.kill(_pid_of(pool, victim), signal.SIGKILL)
    pool.wait_for(victim, "failed")
    assert alive(int(pids[0]))
    (tmp_path / "go").touch()
    pool.wait_for(orphaned, "succeeded")
    os.kill(int(pids[0]), signal.SIGKILL)


def _pid_of(pool: Pool, task: str) -> int:
    """Once the worker itself has said that it has it: the database knows it a moment earlier."""

    def found() -> int | None:
        return next((w["pid"] for w in pool.get("/workers").body["workers"] if w["task"] == task), None)

    return int(wait_until(found, "a worker has the task"))


def test_a_child_that_a_handler_forked_does_not_go_on_as_a_second_worker(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    before = pool.worker_pids()
    log = tmp_path / "log"
    for _ in range(5):
        task = pool.wait_for(pool.submit("fork.and.return", {"log": str(log)}), "succeeded", "unknown", "failed")
        assert (task["state"], task["result"], task["attempts"]) == ("succeeded", "returned", 1)
    wait_until(lambda: len(log.read_text().splitlines()) == 10, "both have left every handler")
    wait_until(lambda: _children_of(before[0]) == [], "the forked children are gone")
    assert pool.worker_pids() == before
    assert pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded")


def _children_of(pid: int) -> list[str]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in listed if alive(int(child))]


def test_a_closed_output_blocks_nobody(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(options={"POOL_LEASE": "5", "POOL_RENEW_EVERY": "0.5"})
    read, write = os.pipe()
    pool.start(output=write)
    os.close(write)
    tasks = [pool.submit("print", {"lines": 1}) for _ in range(count(long=5000))]  # 1 kB each, far over a pipe's 64 KiB
    for task in tasks:
        assert pool.wait_for(task, "succeeded", deadline=120)["attempts"] == 1
    assert pool.get("/readyz").status == 200
    os.close(read)
    assert pool.wait_for(pool.submit("print", {"lines": 50}), "succeeded")["attempts"] == 1


def test_systemd_is_told_and_the_watchdog_is_fed_by_the_loop(new_pool: NewPool, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(20)
        pool = new_pool()
        pool.environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"}
        pool.start()
        heard = {manager.recv(100) for _ in range(6)}
        assert heard == {b"READY=1", b"WATCHDOG=1"}
        os.kill(pool.pid, signal.SIGSTOP)
        manager.settimeout(0.01)
        _drain(manager)
        silent_since = time.monotonic()
        manager.settimeout(1.0)
        with pytest.raises(TimeoutError):
            manager.recv(100)
        assert time.monotonic() - silent_since > 0.3
        os.kill(pool.pid, signal.SIGCONT)
        assert pool.process is not None
        pool.process.terminate()
        wait_until(lambda: manager.recv(100) == b"STOPPING=1", "it says that it stops")
        assert pool.process.wait(20) == 0


def _drain(manager: socket.socket) -> None:
    try:
        while True:
            manager.recv(100)
    except TimeoutError:
        return
