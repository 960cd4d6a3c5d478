"""The command as a whole: help, exit codes, errors as one line; the log's lines."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import deadsure as product
import pytest
from deadsure.cli import log
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.cli.main import COMMANDS
from deadsure.runtime import client, db, dsn, events
from kit import postgres
from kit.command import deadsure, environment
from kit.pool import dsn_text

NOWHERE = {"DEADSURE_DATABASE_DSN": "postgresql://app:s3cret@127.0.0.1:1/app"}


def test_it_says_its_version() -> None:
    assert deadsure("--version").stdout == f"deadsure {product.__version__}\n"


def test_every_public_name_is_there_and_no_other() -> None:
    assert {name for name in product.__all__ if getattr(product, name) is None} == set()
    assert product.submit is client.submit
    with pytest.raises(AttributeError, match="no attribute 'Inlet'"):
        _ = product.Inlet  # type: ignore[attr-defined]


def test_a_client_command_loads_no_driver() -> None:
    said = deadsure("show", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"}).stderr
    assert "deadsure.cli.client" in said
    assert "pg8000" not in said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(command: str) -> None:
    done = deadsure(command, "--help")
    assert done.returncode == 0
    assert f"usage: deadsure {command}" in done.stdout
    assert "examples:" in done.stdout
    assert "--config FILE" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["serve", "--fly"],
        ["serve", "--workers", "0"],
        ["serve", "--bind", "8470"],
        ["submit", "noop"],
        ["submit", "noop", "{}", "--wait", "nan"],
        ["submit", "noop", "{}", "--key", "zwölf"],
        ["list", "--state", "lost"],
        ["show", "x", "--url", "ftp://x"],
    ],
)
def test_a_mistake_in_the_call_is_2(words: list[str]) -> None:
    done = deadsure(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["serve"], {}, "no database is configured"),
        (["migrate"], {}, "no database is configured"),
        (["serve"], NOWHERE, "no application is configured"),
        (["serve", "--app", "a:b"], {**NOWHERE, "DEADSURE_HTTP_BIND": "0.0.0.0:1"}, "there are no tokens"),
        (["up"], {"DEADSURE_HTTP_BIND": "0.0.0.0:1"}, "there are no tokens"),
        (["serve"], {"DEADSURE_POOL_WORKERS": "x"}, "DEADSURE_POOL_WORKERS: expected int"),
        (["serve", "--config", "nowhere.toml"], {}, "cannot read the configuration nowhere.toml"),
        (["serve"], {"DEADSURE_DATABASE_DSN": "postgresql://app:s3cret@db"}, "must name a user and a database"),
        (["list"], {"DEADSURE_URL": "localhost"}, "DEADSURE_URL: expected http://HOST:PORT"),
        (["list"], {"DEADSURE_TOKEN_FILE": "/nowhere/at/all"}, "cannot read the secret in /nowhere/at/all"),
    ],
)
def test_a_bad_configuration_is_78_and_one_line(words: list[str], env: dict[str, str], said: str) -> None:
    done = deadsure(*words, env=env)
    assert (done.returncode, done.stdout) == (78, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("deadsure: ")
    assert said in line
    assert "s3cret" not in line


def test_an_unreachable_database_is_69() -> None:
    done = deadsure("migrate", env=NOWHERE)
    assert done.returncode == 69
    [line] = done.stderr.splitlines()
    assert line.startswith("deadsure: cannot reach the database; nothing was done. 127.0.0.1:1: ")
    assert "s3cret" not in line


def test_an_unknown_variable_is_warned_of_and_no_more() -> None:
    done = deadsure("migrate", env={**NOWHERE, "DEADSURE_POOL_WORKER": "3"})
    assert done.returncode == 69
    assert "warning: the variable DEADSURE_POOL_WORKER is not known" in done.stderr


def test_an_address_in_use_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        env = {**NOWHERE, "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path / "run")}
        done = deadsure("serve", "--app", "a:b", "--bind", bind, env=env)
    assert done.returncode == 1
    assert f"cannot listen on {bind}: Address already in use; nothing was started" in done.stderr


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m deadsure migrate --sql | true"
    done = subprocess.run(
        command, shell=True, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


def test_characters_that_the_terminal_lacks_are_escaped() -> None:
    done = deadsure("list", "--url", "http://127.0.0.1:1/größe", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 69
    assert "gr\\xf6\\xdfe" in done.stderr


# --- migrate


@pytest.fixture
def empty(server: EmbeddedPostgres) -> Iterator[dict[str, str]]:
    """The variables for a database in which there is nothing yet."""
    with postgres.database(server) as address:
        yield {"DEADSURE_DATABASE_DSN": address}


def test_migrating_is_said_and_repeating_it_does_nothing(empty: dict[str, str]) -> None:
    assert deadsure("migrate", "--check", env=empty).returncode == 1
    first, second = deadsure("migrate", env=empty), deadsure("migrate", env=empty)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "applied migration 0001_initial" in first.stderr
    assert "nothing to do" in second.stderr
    assert deadsure("migrate", "--check", env=empty).returncode == 0


def test_the_printed_sql_does_what_migrate_does(empty: dict[str, str]) -> None:
    printed = deadsure("migrate", "--sql")
    assert printed.returncode == 0
    connection = db.connect(db.Settings(dsn.parse(empty["DEADSURE_DATABASE_DSN"]), statement_timeout=30), "test")
    connection.script(printed.stdout)
    connection.close()
    assert deadsure("migrate", "--check", env=empty).returncode == 0


def test_migrate_registers_the_kinds_of_an_application(empty: dict[str, str]) -> None:
    done = deadsure("migrate", "--app", "deadsure.drills.demo:app", env=empty)
    assert done.returncode == 0
    assert "registered 7 kinds: text.analyze, text.analyze_file, sleep, crash, noop, ledger.transfer" in done.stderr
    assert deadsure("migrate", "--app", "nowhere:app", env=empty).returncode == 1


# --- doctor


def test_the_doctor_finds_a_healthy_installation_healthy(database: db.Settings, tmp_path: Path) -> None:
    env = {"DEADSURE_DATABASE_DSN": dsn_text(database), "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path)}
    done = deadsure("doctor", "--app", "deadsure.drills.demo:app", env=env)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 7, done.stdout
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "database .* no database is configured"),
        (NOWHERE, "database .* cannot reach the database"),
        ({"DEADSURE_POOL_RUNTIME_DIR": "/nowhere/at/all"}, "runtime directory .* absent and cannot be made here"),
        ({"DEADSURE_POOL_RUNTIME_DIR": "/dev/null"}, "runtime directory .* is not a folder"),
        ({"DEADSURE_HTTP_BIND": "0.0.0.0:1"}, "configuration .* there are no tokens"),
        ({"DEADSURE_APP": "nowhere:app"}, "application .* cannot import the application 'nowhere:app'"),
    ],
)
def test_the_doctor_says_what_is_wrong(env: dict[str, str], said: str, tmp_path: Path) -> None:
    done = deadsure("doctor", "--data", str(tmp_path), env=env)
    assert done.returncode == 1
    assert re.search(rf"^WRONG  {said}", done.stdout, re.MULTILINE), done.stdout
    assert "s3cret" not in done.stdout


def test_the_doctor_tells_an_old_schema(empty: dict[str, str]) -> None:
    assert re.search("^WRONG  schema .* run `deadsure migrate`", deadsure("doctor", env=empty).stdout, re.MULTILINE)


# --- the log


@pytest.fixture
def quiet() -> Iterator[None]:
    events.unsubscribe_all()
    yield
    events.unsubscribe_all()


@pytest.mark.usefixtures("quiet")
def test_an_event_is_one_line_whatever_is_in_it() -> None:
    lines: list[str] = []
    log.subscribe(lines.append)
    events.emit("a worker ended", pid=7, exit="SIGKILL", said='two "lines"\nhere', nothing="")
    [line] = lines
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z warning a worker ended pid=7 exit=SIGKILL .*", line)
    assert line.endswith(r'said="two \"lines\"\nhere" nothing=""')


@pytest.mark.usefixtures("quiet")
def test_an_event_can_be_json() -> None:
    lines: list[str] = []
    log.subscribe(lines.append, format="json")
    events.emit("draining", running=3, folder=Path("/x"))
    found = json.loads(lines[0])
    assert found.pop("time").endswith("Z")
    assert found == {"level": "info", "event": "draining", "running": 3, "folder": "/x"}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 4), ("warning", 3), ("error", 1)])
def test_a_level_keeps_what_matters_less_away(level: str, count: int) -> None:
    lines: list[str] = []
    log.subscribe(lines.append, level)
    events.emit("a worker ended", exit="exit code 0")
    events.emit("a worker ended", exit="exit code 1")
    events.emit("the database does not answer", error="refused")
    events.emit("a request hit a bug", error="KeyError")
    assert len(lines) == count
