"""`deadsure serve`: what the command adds to the supervisor, which has tests of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db
from kit import postgres
from kit.command import deadsure, environment
from kit.pool import Pool, dsn_text
from kit.wait import wait_until


def test_an_older_schema_is_refused(server: EmbeddedPostgres, tmp_path: Path) -> None:
    with postgres.database(server) as address:
        env = {"DEADSURE_DATABASE_DSN": address, "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path / "run")}
        done = deadsure("serve", "--app", "deadsure.drills.demo:app", "--bind", "127.0.0.1:0", env=env)
    assert done.returncode == 1
    assert "the schema is older than this version" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_log_can_be_json(new_pool: Callable[..., Pool]) -> None:
    pool = new_pool(app="deadsure.drills.demo:app", options={"LOG_FORMAT": "json"}).start()
    assert pool.stop() == 0
    events = [json.loads(line) for line in pool.log.splitlines() if line.startswith("{")]
    assert {"draining", "stopped"} <= {event["event"] for event in events}


def test_a_high_level_keeps_the_log_quiet(new_pool: Callable[..., Pool]) -> None:
    pool = new_pool(app="deadsure.drills.demo:app", options={"LOG_LEVEL": "error"}).start()
    assert pool.stop() == 0
    assert pool.log == "recovered previous pool: failed=0 unknown=0 queued=0 proof=pool_lock\n"


def test_closed_standard_streams_do_not_become_sockets(database: db.Settings, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    pool = Pool(database, tmp_path, app="deadsure.drills.demo:app")
    env = {
        "DEADSURE_DATABASE_DSN": dsn_text(database),
        "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path),
        "DEADSURE_HTTP_BIND": f"127.0.0.1:{pool.port}",
        "DEADSURE_APP": pool.app,
    }
    command = f"exec {sys.executable} -m deadsure serve <&- >&- 2>&-"
    pool.process = subprocess.Popen(command, shell=True, env=environment(env), process_group=0)
    try:
        wait_until(pool.is_ready, "the pool is ready", 30)
        assert {os.readlink(f"/proc/{pool.pid}/fd/{number}") for number in range(3)} == {"/dev/null"}
        pool.wait_for(pool.submit("noop", {}), "succeeded")
        assert pool.stop() == 0
    finally:
        pool.close()


def test_who_is_not_the_owners_child_does_not_start(database: db.Settings, tmp_path: Path) -> None:
    env = {"DEADSURE_DATABASE_DSN": dsn_text(database), "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path / "run")}
    done = deadsure("serve", "--app", "a:b", "--owner", str(os.getppid()), env=env)
    assert done.returncode == 1
    assert not (tmp_path / "run").exists()
