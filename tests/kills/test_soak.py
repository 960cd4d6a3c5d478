"""`deadsure drill soak`: random harm under traffic, and what its judge makes of all that was seen."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadsure.runtime import db
from kit.command import deadsure, environment, start
from kit.drills import name_of, processes
from kit.pool import dsn_text
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
KEYS = ["kills", "lost", "duplicate_effects", "wrong_answers", "unknown_with_contract", "verdict", "seed"]


def soak(*words: str, env: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deadsure", "drill", "soak", "--json", *words]
    return subprocess.run(command, env=environment(env), capture_output=True, text=True, timeout=timeout, check=False)


def nothing_is_left(name: str) -> None:
    assert processes(name) == []
    assert list(Path(tempfile.gettempdir()).glob(f"deadsure-{name}*")) == []


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files that another user may enter: as root, PostgreSQL runs as somebody else."""
    made = Path(tempfile.mkdtemp(prefix="deadsure-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_whatever_is_killed_every_invariant_holds(folder: Path) -> None:
    """In a PostgreSQL of its own: that one it may crash."""
    kills = count(1000, ci=300)
    done = soak("--kills", str(kills), env={"TMPDIR": str(folder)}, timeout=kills + 300)
    print(done.stdout)
    last = json.loads(done.stdout.splitlines()[-1])
    assert list(last) == KEYS
    assert done.returncode == 0, done.stdout + done.stderr
    assert last == {**dict.fromkeys(KEYS, 0), "kills": kills, "verdict": True, "seed": last["seed"]}
    assert f"no violation in {kills} kills" in done.stdout
    assert len(re.findall(r"^  holds +\d+\.", done.stdout, re.MULTILINE)) == 13
    for harm in ("worker", "api", "supervisor", "stopped pool", "ledger", "database"):
        assert re.search(rf"[1-9]\d* {harm}\b", done.stdout), f"no {harm} was hit"
    nothing_is_left(name_of(done.stderr))
    assert list(folder.iterdir()) == []


def test_a_foreign_database_is_never_crashed_and_nothing_stays_in_it(database: db.Settings, store: Store) -> None:
    other = store.submit()
    done = soak("--kills", "8", "--seed", "3", env={"DEADSURE_DATABASE_DSN": dsn_text(database)}, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["seed"], last["kills"], last["verdict"]) == (3, 8, True)
    assert "the database was never crashed" in done.stdout
    assert [row["id"] for row in store.query("select id from deadsure.tasks")] == [other]
    for table, column in (("kinds", "kind"), ("incarnations", "pool"), ("ready", "queue"), ("unknowns", "kind")):
        rows = store.query(f"select {column} as name from deadsure.{table}")
        assert [row for row in rows if str(row["name"]).startswith("drill-")] == [], table
    assert store.query("select 1 as one from deadsure.decisions") == []
    nothing_is_left(name_of(done.stderr))


def test_a_soak_that_is_interrupted_takes_everything_with_it(database: db.Settings, tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {"DEADSURE_DATABASE_DSN": dsn_text(database), "TMPDIR": str(tmp_path)}
    command = start("drill", "soak", "--kills", "1000", env=env, log=log)
    try:
        wait_until(lambda: "in the queue drill-" in log.read_text(), "it has begun")
        name = name_of(log.read_text())
        wait_until(lambda: len(processes(name)) >= 10, "pools are there", 60)
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130
        wait_until(lambda: processes(name) == [], "nothing of it is left")
    finally:
        command.kill()
        command.wait()
    assert list(tmp_path.glob("deadsure-*")) == []


def test_what_cannot_be_meant_is_refused_and_nothing_is_started() -> None:
    assert deadsure("drill", "soak", "--kills", "0").returncode == 2
    refused = deadsure(
        "drill", "soak", "--kills", "1", env={"DEADSURE_DRILLS_ENABLED": "false", "DEADSURE_DATABASE_DSN": "x"}
    )
    assert refused.returncode == 78
