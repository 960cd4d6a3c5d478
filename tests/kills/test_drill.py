"""`deadsure drill`: real pools, a real database, a real ledger, and SIGKILL by another process at every window."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deadsure.drills import checker, kill, nemesis
from deadsure.drills.checker import Verdict
from deadsure.drills.kill import Site
from deadsure.drills.plan import Confirm, Plan
from deadsure.drills.pool import DrillPool
from deadsure.runtime import db
from kit.command import deadsure, environment, start
from kit.drills import name_of, processes
from kit.pool import dsn_text
from kit.scale import count
from kit.store import Store
from kit.up import Up
from kit.wait import wait_until

pytestmark = pytest.mark.kills

ROWS = [
    ("after_claim", "contract", 2, 1, 1, "succeeded"),
    ("after_tool", "contract", 1, 1, 1, "succeeded"),
    ("after_claim", "none", 1, 0, 0, "unknown"),
    ("after_tool", "none", 1, 1, 1, "unknown"),
]
Drill = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def drill(database: db.Settings) -> Drill:
    """Runs `deadsure drill kill` on the test's database."""

    def run(window: str, provider: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {"DEADSURE_DATABASE_DSN": dsn_text(database), **variables}
        return deadsure("drill", "kill", "--window", window, "--provider", provider, *words, env=env)

    return run


# --- the fact table


@pytest.mark.parametrize(("window", "provider", "attempts", "effects", "posts", "state"), ROWS)
def test_the_line_is_exactly_what_the_contract_promises(
    drill: Drill, window: str, provider: str, attempts: int, effects: int, posts: int, state: str
) -> None:
    line = (
        f'{{"window":"{window}","signal":"SIGKILL","attempts":{attempts},"effects":{effects},'
        f'"post_calls":{posts},"state":"{state}"}}\n'
    )
    for _ in range(count(10, ci=1)):
        done = drill(window, provider)
        assert (done.stdout, done.returncode) == (line, 0), done


@pytest.mark.parametrize(("window", "provider", "attempts", "effects", "posts", "state"), ROWS)
@pytest.mark.parametrize("confirm", ["pool_lock", "lease"])
def test_it_is_the_same_when_the_supervisor_dies_too(
    drill: Drill, confirm: str, window: str, provider: str, attempts: int, effects: int, posts: int, state: str
) -> None:
    for _ in range(count(10, ci=1)):
        done = drill(window, provider, "--confirm", confirm, "--full")
        assert done.returncode == 0, done
        facts = json.loads(done.stdout)
        found = (facts["attempts"], facts["effects"], facts["post_calls"], facts["state"])
        assert found == (attempts, effects, posts, state)
        assert facts["proof"] == confirm
        if confirm == "lease":  # renewed every half second, it had at least 2.5 s to go
            assert 1500 < facts["death_to_recovered_ms"] < 15_000


def test_the_whole_table_shows_how_it_was_settled(drill: Drill) -> None:
    absent = json.loads(drill("after_claim", "contract", "--full").stdout)
    assert list(absent)[6:] == [
        "fence", "cancel_requested", "lookup", "key_preserved", "proof", "death_to_recovered_ms", "task_id",
    ]  # fmt: skip
    # A claim, the recovery, the second claim: each has raised the fence.
    assert [absent[key] for key in ("fence", "cancel_requested", "lookup", "key_preserved", "proof")] == [
        3, False, "absent", True, "exit",
    ]  # fmt: skip
    found = json.loads(drill("after_tool", "contract", "--full").stdout)
    assert (found["lookup"], found["fence"]) == ("found", 2)
    assert 0 < found["death_to_recovered_ms"] < 5000


def test_a_sample_of_all_the_kills_comes_out_as_promised(database: db.Settings) -> None:
    sample = count(180, ci=8)
    command = [sys.executable, "-m", "deadsure", "drill", "matrix", "--sample", str(sample), "--seed", "1"]
    env = environment({"DEADSURE_DATABASE_DSN": dsn_text(database)})
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60 * sample, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done
    assert lines[-1] == f"{sample} kills: {sample} ok, 0 wrong, 0 unknown"
    assert lines[0].split()[:3] == ["window", "provider", "confirm"]
    assert len(lines) == sample + 2


@pytest.mark.parametrize("confirm", ["exit", "pool_lock"])
@pytest.mark.parametrize(
    ("window", "provider", "deaths", "attempts", "effects", "posts", "state"),
    [
        ("after_claim", "contract", 3, 3, 0, 0, "unknown"),  # each time with an authoritative absence
        ("after_tool", "dedup-only", 2, 3, 1, 3, "succeeded"),
    ],
)
def test_one_death_after_the_other_spends_the_budget_and_no_restart_forgets_it(
    database: db.Settings, confirm: Confirm, window: str, provider: str,
    deaths: int, attempts: int, effects: int, posts: int, state: str,
) -> None:  # fmt: skip
    told: list[str] = []
    site = Site(database, environment({"DEADSURE_DATABASE_DSN": dsn_text(database)}), told.append)
    plan = Plan.make(window, provider, confirm, deaths=deaths)
    facts = kill.run(site, plan)
    assert (facts.attempts, facts.effects, facts.post_calls, facts.state) == (attempts, effects, posts, state)
    assert facts.key_preserved
    assert sum(text.startswith("kill -9") for text in told) == deaths
    assert checker.judge(plan, facts) == Verdict(True)


def test_facts_that_are_not_the_promised_ones_are_exit_code_1(drill: Drill, store: Store) -> None:
    """The database is made to lie in wait: whatever becomes unknown waits for a person."""
    store.query("""
        create function deadsure.spoil() returns trigger language plpgsql as $$ begin
          if tg_table_name = 'unknowns' then new.needs := 'decision';
          elsif new.state = 'unknown' then new.unknown_needs := 'decision'; end if;
          return new;
        end $$""")
    for table in ("tasks", "unknowns"):
        store.query(
            f"create trigger spoil before insert or update on deadsure.{table} for each row "
            "execute function deadsure.spoil()"
        )
    done = drill("after_claim", "contract")
    assert done.returncode == 1
    assert json.loads(done.stdout)["state"] == "unknown"
    assert "state is 'unknown' and must be 'succeeded'" in done.stderr


# --- what it leaves behind, and what it does not touch


def test_nothing_is_left_of_a_drill(drill: Drill, store: Store) -> None:
    other = store.submit()
    name = name_of(drill("after_tool", "none").stderr)
    assert processes(name) == []
    assert list(Path(tempfile.gettempdir()).glob(f"deadsure-{name}*")) == []
    assert [row["id"] for row in store.query("select id from deadsure.tasks")] == [other]
    for table, column in (("kinds", "kind"), ("incarnations", "pool"), ("ready", "queue"), ("unknowns", "kind")):
        rows = store.query(f"select {column} as name from deadsure.{table}")
        assert [row for row in rows if str(row["name"]).startswith("drill-")] == [], table
    assert store.query("select count(*) as n from deadsure.events where task_id <> :id", id=other)[0]["n"] == 0


def test_a_drill_can_keep_its_rows_and_files(drill: Drill, store: Store) -> None:
    done = drill("after_claim", "none", "--keep", "--full")
    task = store.query("select state, kind from deadsure.tasks where id = :id", id=json.loads(done.stdout)["task_id"])
    assert task == [{"state": "unknown", "kind": f"{name_of(done.stderr)}.transfer"}]
    kept = Path(done.stderr.rstrip().rpartition(", and ")[2])
    assert (kept / "ledger.jsonl").exists()
    subprocess.run(["rm", "-r", kept], check=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_drill_that_is_killed_takes_everything_with_it(
    database: db.Settings, store: Store, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    words = ("drill", "kill", "--window", "after_tool", "--provider", "forgets")  # which waits for 2 s at its window
    env = {"DEADSURE_DATABASE_DSN": dsn_text(database), "TMPDIR": str(tmp_path)}
    command = start(*words, env=env, log=log)
    try:
        wait_until(lambda: "starting a pool" in log.read_text(), "it has begun")
        name = name_of(log.read_text())
        wait_until(lambda: len(processes(name)) >= 4, "supervisor, api child and workers are there")
        command.send_signal(number)
        command.wait(30)
        wait_until(lambda: processes(name) == [], "nothing of it is left")
    finally:
        command.kill()
        command.wait()
    if number != signal.SIGKILL:
        assert list(tmp_path.glob("deadsure-drill-*")) == []
        assert store.query("select 1 as one from deadsure.kinds where kind like 'drill-%'") == []


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_process_that_is_no_worker_of_the_drill_is_not_killed(bystander: subprocess.Popen[bytes]) -> None:
    pool = cast(DrillPool, SimpleNamespace(pid=bystander.pid))
    with pytest.raises(nemesis.NotOurs):
        nemesis.kill_worker(pool, os.getpid())
    other = cast(DrillPool, SimpleNamespace(pid=os.getppid()))
    with pytest.raises(nemesis.NotOurs):
        nemesis.kill_worker(other, bystander.pid)
    assert bystander.poll() is None


# --- where it is held


def test_where_drills_are_switched_off_nothing_is_started(drill: Drill, store: Store) -> None:
    done = drill("after_claim", "contract", DEADSURE_DRILLS_ENABLED="false")
    assert (done.returncode, done.stdout) == (78, "")
    assert "switched off" in done.stderr
    assert store.query("select 1 as one from deadsure.incarnations where pool like 'drill-%'") == []


@pytest.mark.parametrize(
    "words",
    [
        ("--window", "nowhere", "--provider", "contract"),
        ("--window", "after_tool", "--provider", "bank"),
        ("--window", "after_tool", "--provider", "none", "--confirm", "guess"),
        ("--window", "after_tool"),
    ],
)
def test_a_drill_that_cannot_be_meant_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert deadsure("drill", "kill", *words).returncode == 2


def test_without_a_dsn_it_brings_its_own_database_or_uses_the_one_that_runs() -> None:
    line: dict[str, Any]
    with Up() as up:
        words = ("drill", "kill", "--window", "after_claim", "--provider", "contract", "--data", str(up.data))
        alone = deadsure(*words)
        assert alone.returncode == 0, alone
        assert "starting PostgreSQL" in alone.stderr
        up.start().ready()
        beside = deadsure(*words)
        assert beside.returncode == 0, beside
        assert "using the PostgreSQL that runs" in beside.stderr
        line = json.loads(beside.stdout)
        assert (line["attempts"], line["state"]) == (2, "succeeded")
        assert up.left()
        up.signal(signal.SIGTERM)
        assert up.ended() == 0


# --- the page


def test_the_page_of_drills_shows_what_a_drill_prints(database: db.Settings) -> None:
    page = (Path(__file__).parents[2] / "docs" / "drills.md").read_text()
    shown = re.findall(r"^\$ deadsure (drill kill .*)\n(\{.*\})$", page, re.MULTILINE)
    assert shown
    for words, line in shown:
        ran = deadsure(*words.split(), env={"DEADSURE_DATABASE_DSN": dsn_text(database)})
        assert (ran.returncode, ran.stdout.strip()) == (0, line), ran.stderr


def test_the_page_of_drills_names_a_matrix_that_runs(database: db.Settings) -> None:
    page = (Path(__file__).parents[2] / "docs" / "drills.md").read_text()
    (words,) = re.findall(r"^deadsure (drill matrix --sample \d+ --seed \d+) ", page, re.MULTILINE)
    few = re.sub(r"--sample \d+", "--sample 2", words)
    ran = deadsure(*few.split(), env={"DEADSURE_DATABASE_DSN": dsn_text(database)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
