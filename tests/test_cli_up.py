"""`deadsure up` from end to end: real PostgreSQL, real supervisor, real signals."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from kit import postgres
from kit.command import deadsure
from kit.up import Up
from kit.wait import wait_until

SLEEP = {"seconds": 600}


@pytest.fixture
def up() -> Iterator[Up]:
    with Up() as made:
        yield made


def test_a_task_runs_and_a_signal_ends_everything(up: Up) -> None:
    up.start("--workers", "2").ready()
    assert sum(worker["pid"] > 0 for worker in up.call("/workers")["workers"]) == 2
    url = f"http://127.0.0.1:{up.port}"
    assert f"--url {url}" in up.log
    done = deadsure("submit", "text.analyze", '{"text": "größe 界"}', "--wait", "20", "--url", url)
    assert done.returncode == 0, done
    assert '"words": 2' in done.stdout
    up.signal(signal.SIGTERM)
    assert up.ended() == 0
    assert up.log.endswith("deadsure: PostgreSQL has stopped\n")


def test_the_data_stays_for_the_next_time(up: Up) -> None:
    up.start().ready()
    task = up.submit("noop", {})
    up.wait_for(task, "succeeded")
    up.signal(signal.SIGINT)
    assert up.ended() == 0
    up.start()
    up.wait_for(task, "succeeded")


@pytest.mark.kills
def test_a_killed_supervisor_is_started_again_and_reports_what_it_recovered(up: Up) -> None:
    up.start("--workers", "1").ready()
    task = up.submit("sleep", SLEEP)
    up.wait_for(task, "running")
    database, supervisor = up.postgres(), up.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    found = up.wait_for(task, "unknown")
    assert found["unknown"]["proof"] == "pool_lock"
    assert f"the supervisor (pid {supervisor}) was killed by SIGKILL; starting it again" in up.log
    assert "recovered previous pool: failed=0 unknown=1 queued=0 proof=pool_lock" in up.log
    assert up.postgres() == database
    up.wait_for(up.submit("noop", {}), "succeeded")


def test_a_supervisor_that_exits_ends_it_with_the_same_code(up: Up) -> None:
    up.start().ready()
    os.kill(up.supervisor(), signal.SIGTERM)
    assert up.ended() == 0


@pytest.mark.kills
def test_a_killed_postgres_is_started_again_and_nothing_is_lost(up: Up) -> None:
    up.start().ready()
    task = up.submit("noop", {})
    killed = up.postgres()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "PostgreSQL has ended; starting it again" in up.log, "it is noticed")
    assert up.postgres() != killed
    up.wait_for(task, "succeeded")


@pytest.mark.kills
def test_a_killed_owner_takes_everything_with_it(up: Up) -> None:
    up.start().ready()
    assert len(up.everybody()) > 10
    up.signal(signal.SIGKILL)
    assert up.ended() == -signal.SIGKILL


def test_the_first_signal_drains_and_the_second_stops_at_once(up: Up) -> None:
    up.start("--workers", "1").ready()
    task = up.submit("sleep", SLEEP)
    up.wait_for(task, "running")
    up.signal(signal.SIGINT)
    wait_until(lambda: " info draining" in up.log, "the supervisor drains")
    assert up.call(f"/tasks/{task}")["state"] == "running"
    up.signal(signal.SIGINT)
    assert up.ended(20) == 0
    up.start()
    assert up.wait_for(task, "unknown")["unknown"]["cause"] == "shutdown"


def test_a_closed_terminal_drains(up: Up) -> None:
    up.start().ready()
    up.signal(signal.SIGHUP)
    assert up.ended() == 0


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_an_interrupt_during_the_start_leaves_nothing(up: Up, before: signal.Handlers) -> None:
    """Also where the shell had it ignored, as for what a script puts in the background."""
    ours = signal.signal(signal.SIGINT, before)
    try:
        up.start()
    finally:
        signal.signal(signal.SIGINT, ours)
    wait_until(lambda: "starting PostgreSQL" in up.log, "it starts")
    up.signal(signal.SIGINT)
    up.everybody()
    assert up.ended() in (0, 130)
    assert "Traceback" not in up.log


def test_an_address_in_use_starts_no_database(up: Up) -> None:
    with socket.create_server(("127.0.0.1", up.port)):
        assert up.start().ended() == 1
    assert "Address already in use; nothing was started" in up.log
    assert not up.data.exists()


def test_a_data_folder_in_use_is_refused_and_the_commands_find_it(up: Up) -> None:
    up.start().ready()
    done = deadsure("up", "--data", str(up.data), "--bind", "127.0.0.1:0")
    assert done.returncode == 1
    assert f"{up.data} is in use by PostgreSQL with pid {up.postgres()}" in done.stderr
    for words in (["doctor"], ["prune", "--older-than", "1"]):
        done = deadsure(*words, "--data", str(up.data))
        assert (done.returncode, f"using the PostgreSQL that runs in {up.data}" in done.stderr) == (0, True), done


def test_with_a_dsn_it_starts_no_database_and_shows_no_password(server: EmbeddedPostgres, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with postgres.database(server, tcp=True) as address:
        secret = address.replace("deadsure@", "deadsure:s3cret@")
        with Up({"DEADSURE_DATABASE_DSN": secret, "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path)}) as up:
            up.start().ready()
            up.wait_for(up.submit("noop", {}), "succeeded")
            assert not up.data.exists()
            for pid in (up.pid, *up.everybody()):
                assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            up.signal(signal.SIGTERM)
            assert up.ended() == 0
            assert "s3cret" not in up.log
