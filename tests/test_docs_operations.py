"""docs/operations.md and the roles in docs/deployment.md: what they show is run, what they name is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.cli.embedded_binaries import find_binaries
from kit import postgres
from kit.aged import many
from kit.pages import Page, Shell, code, codes
from kit.pool import ROOT, dsn_text
from kit.roles import ROLES, apply, as_user, login
from kit.store import Store

PAGE = Page.of("operations.md")
DEPLOYMENT = Page.of("deployment.md")


def test_prune_prints_what_is_shown(store: Store, tmp_path: Path) -> None:
    many(store, 2)
    shell = Shell(tmp_path, env={"DEADSURE_DATABASE_DSN": dsn_text(store.settings)})
    assert shell.type(PAGE.blocks("run")["prune"]) == PAGE.blocks("shows")["prune"]


def test_the_hosts_are_shown_by_the_statement_given(store: Store) -> None:
    (row,) = store.query(PAGE.blocks("sql")["hosts"])
    assert (row["host"], row["pool"], row["ended_at"]) == ("here", "default", None)


def test_the_roles_of_the_table_are_those_of_the_file() -> None:
    listed = [code(row[0]) for row in DEPLOYMENT.table("Database roles")]
    assert listed == list(ROLES)


def test_the_logins_that_are_shown_can_be_made(store: Store) -> None:
    driver = store.connection._driver
    apply(driver)
    (text,) = [block for block in re.findall(r"```sql\n(.*?)```", DEPLOYMENT.text, re.DOTALL) if "shop_pool" in block]
    driver.run("begin")
    driver.run(text)
    members = driver.run("select m.rolname from pg_auth_members a join pg_roles m on m.oid = a.member"
                         " where m.rolname like 'shop%' order by 1")  # fmt: skip
    driver.run("rollback")
    assert members == [["shop_migrate"], ["shop_pool"], ["shop_prune"]]


def test_the_files_for_psql_run_in_psql_as_they_are_called(server: EmbeddedPostgres, store: Store) -> None:
    """`psql` reads a file in its own way: variables, backslashes, quotes."""
    psql = find_binaries().program("psql")
    name = postgres.database_name(dsn_text(store.settings))
    store.query("update deadsure.incarnations set lease_until = 'epoch'")
    for text in (DEPLOYMENT.text, PAGE.text):
        (call,) = re.findall(r"psql -v [^`]*?(?=```|\n\n)", text)
        words = call.replace("\\\n", " ").replace(
            "psql", f"{psql} -q -h {server.socket} -p {server.port} -U deadsure", 1
        )
        words = re.sub(r"dbname=deadsure\b", f"dbname={name}", words).strip()
        words = re.sub(r" deadsure$", f" {name}", words)
        done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stderr)


def test_a_pool_of_the_size_given_has_the_sessions_given() -> None:
    said = PAGE.section("Connections")
    assert codes(said)[0] == "[http] db_connections"
    assert "1 + 8 + 1 + 4 = 14" in said


def test_a_migrators_login_migrates(store: Store, tmp_path: Path) -> None:
    driver = store.connection._driver
    apply(driver)
    with login(driver, "deadsure_owner") as name:
        driver.run(f"alter role {name} set role = deadsure_owner")
        shell = Shell(tmp_path, env={"DEADSURE_DATABASE_DSN": dsn_text(as_user(store.settings, name))})
        shell.type("deadsure migrate")
        assert shell.type("deadsure migrate --check && echo done") == "done\n"
