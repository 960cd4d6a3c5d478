"""docs/configuration.md: its table is the code's, its examples are read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from deadsure.cli import config, options, wiring
from deadsure.cli.config import KEYS, OTHER_VARIABLES, Config
from deadsure.cli.runtime_dir import default_runtime_dir
from deadsure.runtime import db, dsn
from kit.pages import Page, Shell, codes
from kit.pool import dsn_text

PAGE = Page.of("configuration.md")


@pytest.fixture(autouse=True)
def _nobodys_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("DEADSURE_", "XDG_", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def _type(given: Any) -> str:
    """A key's type in the page's words."""
    if get_origin(given) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(given))
    base, meta = given, None
    if hasattr(given, "__metadata__"):
        base, meta = given.__origin__, given.__metadata__[0]
    if base is int:
        return f"{meta.ge:,} to {meta.le:,}"
    if base is str:
        return "address" if meta.extra else "name" if meta.pattern else "text"
    return {float: "seconds", bool: "true or false", Path: "path"}.get(base, "list")


def _default(path: str) -> str:
    value: Any = Config()
    for name in path.split("."):
        value = getattr(value, name)
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return f"`{', '.join(value)}`"
    return f"`{value}`"


def test_the_table_of_keys_is_the_one_in_the_code() -> None:
    listed = [tuple(row[:4]) for row in PAGE.table("Every key")[: len(KEYS)]]
    assert listed == [
        (f"`{key.path}`", _type(key.type), _default(key.path), f"`{key.variable}`") for key in KEYS.values()
    ]
    assert all(row[4].endswith(".") for row in PAGE.table("Every key")[: len(KEYS)])


def test_the_other_variables_are_listed() -> None:
    named = re.findall(r"^\| `(DEADSURE_\w+)` \|", PAGE.text, re.MULTILINE)
    assert tuple(named) == OTHER_VARIABLES


def test_the_exit_codes_are_those_of_the_commands() -> None:
    listed = {int(row[0]) for row in PAGE.table("Exit codes")}
    assert listed == {
        options.DONE, options.FAILED, options.USAGE, options.UNAVAILABLE, options.BAD_CONFIGURATION, 130,
    }  # fmt: skip


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    (text,) = PAGE.fenced("toml")
    (tmp_path / "deadsure.toml").write_text(text)
    found = config.load(str(tmp_path / "deadsure.toml"))
    assert (found.pool.workers, found.pool.queues) == (8, ("urgent", "default"))
    assert found.database.dsn is not None
    assert [host.name for host in dsn.parse(found.database.dsn).hosts] == ["db1", "db2"]


def test_every_dsn_that_is_shown_can_be_read() -> None:
    shown = [text for text in codes(PAGE.section("The DSN")) if text.startswith("postgresql://") and "USER" not in text]
    assert len(shown) == 2
    for text in shown:
        dsn.parse(text)
    assert dsn.parse(shown[1].replace("app@/", "app@:5433/")).hosts[0].port == 5433
    modes = next(row[1] for row in PAGE.table("The DSN") if row[0] == "`sslmode`")
    assert tuple(codes(modes)) == dsn._SSL_MODES
    assert dsn.parse(shown[0]).sslmode == codes(modes)[0]


def test_the_runtime_directory_is_looked_for_in_the_order_that_is_given(tmp_path: Path) -> None:
    mine = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert default_runtime_dir({"RUNTIME_DIRECTORY": "/run/a:/run/b", **mine}) == Path("/run/a")
    assert default_runtime_dir(mine) == tmp_path / "deadsure"
    last = default_runtime_dir({})
    assert last == Path("/run/deadsure") if os.geteuid() == 0 else last.name == f"deadsure-{os.geteuid()}"


def test_the_credentials_have_the_names_that_are_given() -> None:
    said = PAGE.section("Secrets")
    assert f"`{wiring.PASSWORD_CREDENTIAL}`" in said
    assert f"`{wiring.TOKENS_CREDENTIAL}`" in said


def test_seconds_have_the_bounds_that_are_given() -> None:
    assert "at most 86,400" in PAGE.section("Every key")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(86401, config.Seconds)
    assert msgspec.convert(86400, config.Seconds) == 86400


def test_the_doctor_looks_at_what_is_shown(database: db.Settings, tmp_path: Path) -> None:
    variables = {
        "DEADSURE_DATABASE_DSN": dsn_text(database),
        "DEADSURE_APP": "deadsure.drills.demo:app",
        "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path / "run"),
    }
    printed = Shell(tmp_path, env=variables).type(PAGE.blocks("run")["doctor"])
    shown = PAGE.blocks("shows")["doctor"]
    assert [line[:24] for line in printed.splitlines()] == [line[:24] for line in shown.splitlines()]
    assert printed.splitlines()[:2] == shown.splitlines()[:2]


def test_this_page_has_no_variable_that_does_not_exist() -> None:
    known = {key.variable for key in KEYS.values()} | set(OTHER_VARIABLES) | {"DEADSURE_"}
    assert set(re.findall(r"DEADSURE_\w*", PAGE.text)) <= known
