"""deploy/postgres/roles.sql: who may do what, in one table; and that the product works with so little."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pg8000.native
import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate, rights
from kit import postgres
from kit.aged import many
from kit.api import fresh_store
from kit.command import deadsure
from kit.pool import ROOT, Pool, dsn_text
from kit.roles import ROLES, apply, as_user, login
from kit.store import Store
from kit.wait import wait_until

#: One line for every table, view and function: what each role may do with it. `update(x)` is that column alone. The
#: owner may do everything.
MATRIX = """
                  runtime                      submitter  reader  pruner
migrations        select                       -          select  select
kinds             select,insert,update         -          select  -
tasks             select,insert,update         -          -       select,delete,update(version)
ready             select,insert,update,delete  -          select  select,delete,update(batchable)
scheduled         select,insert,update,delete  -          select  select
unknowns          select,insert,update,delete  -          -       -
incarnations      select,insert,update         -          select  select,delete,update(host)
slots             select,insert,update         -          select  select,delete,update(number)
events            select,insert                -          select  select,delete
decisions         select,insert                -          select  select,delete
tasks_view        -                            -          select  -
unknown_view      -                            -          select  -
submit()          -                            execute    -       -
asked()           execute                      -          -       -
keeps_the_rules() execute                      -          -       -
new_task_id()     -                            -          -       -
refuse_change()   -                            -          -       -
"""

#: Which role the statements of each file are sent by. What is missing here fails.
SENT_BY = {
    "account": "runtime", "batch": "runtime", "cancel": "runtime", "effects": "runtime", "figures": "runtime",
    "hot": "runtime", "pool": "runtime", "read": "runtime", "reconcile": "runtime", "recover": "runtime",
    "sessions": "runtime", "submit": "runtime", "inspect": "runtime", "client": "submitter", "prune": "pruner",
    "drill": "owner", "soak": "owner", "bench": "owner", "migrate": "owner",
}  # fmt: skip

PRIVILEGES = ("select", "insert", "update", "delete", "truncate", "references", "trigger")


def granted() -> dict[str, dict[str, set[str]]]:
    """The matrix: by object, by role."""
    head, *lines = MATRIX.strip("\n").splitlines()
    names = head.split()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    return {
        thing: {name: set() if cell == "-" else set(cell.split(",")) for name, cell in zip(names, cells, strict=True)}
        for thing, cells in rows.items()
    }


@pytest.fixture(scope="module")
def roles(server: EmbeddedPostgres) -> Iterator[Store]:
    """A database on which the file was run twice."""
    with fresh_store(server) as store:
        for _ in range(2):
            apply(store.connection._driver)
        yield store


def _ask(store: Store, text: str, **values: object) -> set[tuple[object, ...]]:
    return {tuple(row) for row in store.connection._driver.run(text, **values) or []}


# --- who may do what


def test_the_matrix_names_everything_that_is_in_the_schema(roles: Store) -> None:
    there = _ask(
        roles,
        """
        select relname from pg_class where relnamespace = 'deadsure'::regnamespace and relkind not in ('i', 'S')
         union all
        select proname || '()' from pg_proc where pronamespace = 'deadsure'::regnamespace""",
    )
    assert {name for (name,) in there} == set(granted())


def test_every_role_may_do_what_the_matrix_says_and_nothing_else(roles: Store) -> None:
    held = _ask(roles, """
        select c.relname, replace(r.rolname, 'deadsure_', ''), p.privilege
          from pg_class c cross join pg_roles r
         cross join unnest(cast(:privileges as text[])) as p(privilege)
         where c.relnamespace = 'deadsure'::regnamespace and c.relkind not in ('i', 'S')
           and r.rolname = any(cast(:roles as text[])) and has_table_privilege(r.oid, c.oid, p.privilege)
         union all
        select c.relname, replace(r.rolname, 'deadsure_', ''), p.privilege || '(' || a.attname || ')'
          from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         cross join pg_roles r cross join unnest('{select,insert,update,references}'::text[]) as p(privilege)
         where c.relnamespace = 'deadsure'::regnamespace and c.relkind not in ('i', 'S')
           and r.rolname = any(cast(:roles as text[])) and has_column_privilege(r.oid, c.oid, a.attnum, p.privilege)
           and not has_table_privilege(r.oid, c.oid, p.privilege)
         union all
        select p.proname || '()', replace(r.rolname, 'deadsure_', ''), 'execute'
          from pg_proc p cross join pg_roles r
         where p.pronamespace = 'deadsure'::regnamespace
           and r.rolname = any(cast(:roles as text[])) and has_function_privilege(r.oid, p.oid, 'execute')
        """, privileges=list(PRIVILEGES), roles=[role for role in ROLES if role != "deadsure_owner"])  # fmt: skip
    meant = {(thing, role, right) for thing, row in granted().items() for role, all in row.items() for right in all}
    assert held == meant


def test_the_owner_owns_everything_and_nobody_else_may_make_anything(roles: Store) -> None:
    owners = _ask(
        roles,
        """
        select relowner::regrole::text from pg_class where relnamespace = 'deadsure'::regnamespace
         union
        select proowner::regrole::text from pg_proc where pronamespace = 'deadsure'::regnamespace
         union
        select nspowner::regrole::text from pg_namespace where nspname = 'deadsure'""",
    )
    assert owners == {("deadsure_owner",)}
    on_the_schema = "select has_schema_privilege(:role, 'deadsure', 'usage'), has_schema_privilege(:role, 'deadsure',"
    for role in ROLES[1:]:
        assert _ask(roles, f"{on_the_schema} 'create')", role=role) == {(True, False)}


def test_a_login_without_a_role_may_do_nothing(roles: Store) -> None:
    with login(roles.connection._driver) as name, connected(as_user(roles.settings, name)) as nobody:
        for text in ("select from deadsure.tasks_view", "select deadsure.submit('plain', '{}')"):
            with pytest.raises(pg8000.exceptions.DatabaseError, match="permission denied for schema"):
                nobody._driver.run(text)


def test_what_the_doctor_holds_for_a_pools_needs_is_what_the_file_grants() -> None:
    needs = {table: set(privileges) for table, privileges in rights.OF_A_POOL.items()}
    assert needs == {thing: row["runtime"] for thing, row in granted().items() if row["runtime"]}
    for table, privileges in rights.TOO_MUCH.items():
        assert granted()[table]["runtime"].isdisjoint(privileges)


def _statements() -> Iterator[tuple[str, str, str]]:
    for file in sorted((ROOT / "runtime" / "sql").glob("*.sql")):
        named = re.split(r"^-- name: (\w+)$", file.read_text(), flags=re.MULTILINE)
        for name, text in zip(named[1::2], named[2::2], strict=True):
            yield file.stem, name, text.strip().rstrip(";")


@pytest.mark.parametrize("file", sorted({file for file, _, _ in _statements()}))
def test_whoever_sends_a_statement_may(roles: Store, file: str) -> None:
    driver = roles.connection._driver
    driver.run("begin")
    driver.run(f"set local role deadsure_{SENT_BY[file]}")
    for _, name, text in (found for found in _statements() if found[0] == file):
        if name in ("create_schema", "create_migrations", "listen"):
            continue  # it cannot be explained
        plain = re.sub(r"cast\((:\w+|%s) as", "cast(null as", text)
        try:
            driver.run(f"explain {plain}")
        except pg8000.exceptions.DatabaseError as error:
            pytest.fail(f"{name}, sent by deadsure_{SENT_BY[file]}: {error}")
    driver.run("rollback")


# --- the file itself


def test_it_needs_the_schema_first(server: EmbeddedPostgres) -> None:
    with (
        postgres.database(server) as address,
        postgres.session(server, postgres.database_name(address)) as session,
        pytest.raises(pg8000.exceptions.DatabaseError, match="run deadsure migrate first"),
    ):
        apply(session)


def test_it_can_be_run_again_beside_a_pool_that_is_in_the_middle_of_everything(
    roles: Store, server: EmbeddedPostgres
) -> None:
    busy = roles.connect()
    with busy.transaction():
        busy._driver.run("update deadsure.kinds set priority = priority")
        busy._driver.run("lock table deadsure.tasks, deadsure.slots, deadsure.events in row exclusive mode")
        with postgres.session(server, postgres.database_name(dsn_text(roles.settings))) as session:
            apply(session)
            assert session.run("select has_table_privilege('deadsure_runtime', 'deadsure.tasks', 'update')") == [[True]]


def test_an_administrator_who_is_no_superuser_can_run_it(server: EmbeddedPostgres) -> None:
    made = [role.replace("deadsure_", "other_") for role in ROLES]
    with postgres.admin(server) as admin, login(admin) as chief:
        with postgres.database(server) as address:
            admin.run(f"alter role {chief} createrole")
            admin.run(f"grant create on database {postgres.database_name(address)} to {chief}")
            with connected(as_user(db.Settings(dsn.parse(address)), chief)) as connection:
                migrate.migrate(connection)
                for _ in range(2):
                    apply(connection._driver, "other_")
                assert migrate.pending(connection) == []
                (found,) = connection._driver.run("select distinct tableowner from pg_tables"
                                                  " where schemaname = 'deadsure'") or []  # fmt: skip
                assert found == ["other_owner"]
        for role in made:
            admin.run(f"drop role {role}")


def test_what_a_migrator_makes_belongs_to_the_owner(roles: Store) -> None:
    with login(roles.connection._driver, "deadsure_owner") as name:
        roles.connection._driver.run(f"alter role {name} set role = deadsure_owner")
        with connected(as_user(roles.settings, name)) as connection:
            connection._driver.run("create table deadsure.later (); create function deadsure.later() returns int"
                                   " language sql return 1")  # fmt: skip
        text = "select tableowner, has_function_privilege('deadsure_runtime', 'deadsure.later()', 'execute')"
        found = _ask(roles, f"{text} from pg_tables where tablename = 'later'")
        roles.connection._driver.run("drop table deadsure.later; drop function deadsure.later()")
        assert found == {("deadsure_owner", False)}


# --- the product, with so little


def test_a_pool_works_as_the_runtime_role_and_cannot_change_what_was_decided(
    new_pool: Callable[..., Pool], store: Store, tmp_path: Path
) -> None:
    admin = store.connection._driver
    apply(admin)
    with login(admin, "deadsure_runtime") as name:
        pool = new_pool()
        pool.database = as_user(store.settings, name)
        task = _work_through_everything(pool, tmp_path)
        assert {row["event"] for row in pool.get(f"/tasks/{task}/events").body["events"]} >= {"recovered", "resolved"}
        sessions = store.query("select from pg_stat_activity where usename = :name", name=name)
        assert 3 <= len(sessions) <= 1 + 1 + (4 + 1)  # the supervisor, one worker, one api process
        with connected(pool.database) as connection:
            for text in (
                "update deadsure.decisions set evidence = 'none'",
                "delete from deadsure.decisions",
                "truncate deadsure.decisions",
                "update deadsure.events set event = 'x'",
                "delete from deadsure.events",
                "delete from deadsure.tasks",
                "alter table deadsure.decisions disable trigger all",
                "drop table deadsure.decisions",
                "create or replace function deadsure.refuse_change() returns trigger language sql as 'select 1'",
                "create table deadsure.mine ()",
                "set role deadsure_owner",
                "set role deadsure_pruner",
                "set session_replication_role = replica",
            ):
                with pytest.raises(pg8000.exceptions.DatabaseError) as refused:
                    connection._driver.run(f"set deadsure.pruning = on; {text}")
                assert refused.value.args[0]["C"] == "42501", text
        env = {"DEADSURE_DATABASE_DSN": dsn_text(pool.database), "DEADSURE_POOL_RUNTIME_DIR": str(tmp_path / "run")}
        doctor = deadsure("doctor", env=env)
        assert f"{name}, which may run a pool, and cannot change a decision or remove a task" in doctor.stdout
        pruned = deadsure("prune", "--older-than", "0", env=env)
        assert pruned.returncode == 1
        assert "permission denied" in pruned.stderr
        assert "deploy/postgres/roles.sql" in pruned.stderr
        assert pool.stop() == 0
        assert "permission denied" not in pool.log
        assert store.query("select actor, evidence from deadsure.decisions") == [
            {"actor": "loopback", "evidence": "letter 7"}
        ]


def _work_through_everything(pool: Pool, folder: Path) -> str:
    """A success, a retry, a batch, a schedule, cancels, an effect, deaths, a decision. Returns the decided task."""
    pool.start()
    done = [pool.submit("note"), pool.submit("flaky", {"fail": 1}), pool.submit("pay", {"folder": str(folder)})]
    assert pool.post("/tasks/batch", {"tasks": [{"kind": "note", "payload": {}}] * 3}).status == 202
    later = pool.submit("note", {}, run_at="2099-01-01T00:00:00Z")
    assert pool.post(f"/tasks/{later}/cancel").status == 202
    for id in done:
        pool.wait_for(id, "succeeded")
    blocked = pool.submit("block.unknown", {"go": str(folder / "go"), "log": str(folder / "log")})
    wait_until((folder / "log").exists, "it runs")
    assert pool.post(f"/tasks/{blocked}/cancel").status == 202
    pool.kill_all()
    pool.start()
    pool.wait_for(blocked, "unknown")
    tag = pool.get(f"/tasks/{blocked}").headers["ETag"]
    body = {"state": "failed", "evidence": "letter 7"}
    assert pool.post(f"/tasks/{blocked}/resolution", body, {"If-Match": tag}).status == 200
    return blocked


def test_the_pruners_role_is_enough_for_prune(store: Store) -> None:
    apply(store.connection._driver)
    many(store, 20)
    store.new_incarnation()
    store.query("update deadsure.incarnations set ended_at = '2020-01-01', ended_by = 'exit'"
                " where incarnation <> :mine", mine=store.incarnation)  # fmt: skip
    with login(store.connection._driver, "deadsure_pruner") as name:
        env = {"DEADSURE_DATABASE_DSN": dsn_text(as_user(store.settings, name))}
        pruned = deadsure("prune", "--older-than", "30", env=env)
    assert (pruned.returncode, pruned.stdout) == (0, "removed 20 tasks, 0 slots, 1 incarnations\n"), pruned.stderr


def test_the_submitters_role_can_submit_and_see_nothing(roles: Store) -> None:
    with (
        login(roles.connection._driver, "deadsure_submitter") as name,
        connected(as_user(roles.settings, name)) as connection,
    ):
        submitted = connection._driver.run("select deadsure.submit('plain', '{}')")
        assert submitted is not None
        assert roles.row(submitted[0][0])["state"] == "queued"
        with pytest.raises(pg8000.exceptions.DatabaseError, match="permission denied"):
            connection._driver.run("select from deadsure.tasks_view")
        doctor_says = rights.standing(connection)
    assert doctor_says is not None
    assert "select on tasks" in doctor_says.missing


def test_what_a_role_may_beyond_a_pools_needs_is_told(store: Store) -> None:
    apply(store.connection._driver)
    with login(store.connection._driver, "deadsure_owner") as name:
        env = {"DEADSURE_DATABASE_DSN": dsn_text(as_user(store.settings, name))}
        (line,) = [line for line in deadsure("doctor", env=env).stdout.splitlines() if " role " in line]
    assert line.startswith("ok ")
    assert "delete on decisions" in line


@contextmanager
def connected(settings: db.Settings) -> Iterator[db.Connection]:
    connection = db.connect(settings, "test")
    try:
        yield connection
    finally:
        connection.close()
