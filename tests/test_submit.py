"""Submit without HTTP: on the caller's own connection and by SQL, in the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pg8000.dbapi
import psycopg
import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime.client import submit, submit_many
from deadsure.runtime.errors import NotStorable
from kit.store import Store

Connect = Callable[[], Any]


@pytest.fixture(params=["pg8000", "psycopg"])
def connection(request: pytest.FixtureRequest, store: Store, server: EmbeddedPostgres) -> Iterator[Any]:
    """The caller's own connection, with the two drivers that are supported."""
    dsn = store.settings.dsn
    host: dict[str, Any] = {"host": "127.0.0.1", "port": server.port}
    if request.param == "pg8000":
        opened: Any = pg8000.dbapi.connect(dsn.user, database=dsn.database, **host)
    else:
        opened = psycopg.connect(dbname=dsn.database, user=dsn.user, **host)
    yield opened
    opened.close()


def tasks(store: Store) -> list[dict[str, Any]]:
    return store.query("select * from deadsure.tasks order by id")


def test_the_task_exists_exactly_if_the_transaction_commits(connection: Any, store: Store) -> None:
    submit(connection, "plain", {"a": 1})
    connection.rollback()
    assert not tasks(store)
    id = submit(connection, "plain", {"a": [1, "ü", None]})
    assert not tasks(store)
    connection.commit()
    assert [(str(task["id"]), task["payload"]) for task in tasks(store)] == [(id, {"a": [1, "ü", None]})]
    assert UUID(id).version == 7
    assert store.worker().claim() is not None


def test_every_option_is_stored(connection: Any, store: Store) -> None:
    at = datetime(2100, 1, 1, tzinfo=UTC)
    submit(connection, "harmless", 1, key="k", queue="q", priority=-3, run_at=at, max_attempts=2, timeout=1.5)
    connection.commit()
    task = tasks(store)[0]
    assert (task["idempotency_key"], task["queue"], task["priority"]) == ("k", "q", -3)
    assert (task["run_at"], task["max_attempts"], task["timeout"], task["on_death"]) == (at, 2, 1.5, "requeue")
    assert len(store.query("select id from deadsure.scheduled")) == 1


def test_the_same_request_under_a_key_is_the_same_task(connection: Any, store: Store) -> None:
    first = submit(connection, "plain", {"x": 1, "y": 2}, key="k")
    connection.commit()
    assert submit(connection, "plain", {"y": 2.0, "x": 1}, key="k") == first
    with pytest.raises(Exception, match="belongs to the task"):
        submit(connection, "plain", {"x": 1, "y": 3}, key="k")
    connection.rollback()
    assert len(tasks(store)) == 1


def test_many_are_answered_in_their_order(connection: Any, store: Store) -> None:
    ids = submit_many(connection, "plain", range(100), keys=[f"k{100 - n}" if n % 2 else None for n in range(100)])
    connection.commit()
    stored = {str(task["id"]): task["payload"] for task in tasks(store)}
    assert [stored[id] for id in ids] == list(range(100))


def test_a_text_that_looks_like_sql_or_an_array_is_only_a_text(connection: Any, store: Store) -> None:
    nasty = ['{"a","b"}', "NULL", "\\", '"', "'; drop table x; --", "%s", "a,b", ""]
    ids = submit_many(connection, "plain", nasty)
    connection.commit()
    stored = {str(task["id"]): task["payload"] for task in tasks(store)}
    assert [stored[id] for id in ids] == nasty


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nobody.has.it", {}),
        ("plain", {"max_attempts": 2}),
        ("plain", {"max_attempts": 0}),
        ("plain", {"key": "a b"}),
        ("plain", {"key": "k" * 256}),
        ("plain", {"timeout": 0}),
        ("plain", {"queue": ""}),
        ("plain", {"queue": "a\nb"}),
        ("plain", {"queue": " a"}),
        ("plain", {"queue": "a\u00a0"}),
        ("plain", {"queue": "a\u202eb"}),
        ("plain", {"queue": "\u200b"}),
        ("plain", {"queue": "a\ue000b"}),
        ("plain", {"queue": "q" * 201}),
    ],
    ids=str,
)
def test_what_the_database_refuses_is_an_error(
    connection: Any, store: Store, kind: str, options: dict[str, Any]
) -> None:
    with pytest.raises((pg8000.dbapi.DatabaseError, psycopg.DatabaseError)):
        submit(connection, kind, {}, **options)
    connection.rollback()
    assert not tasks(store)


UNSTORABLE = (float("nan"), float("inf"), "a\0b", "\ud800", object(), 10**5000)


@pytest.mark.parametrize("payload", UNSTORABLE, ids=["nan", "inf", "nul", "surrogate", "object", "digits"])
def test_a_payload_that_cannot_be_stored_is_refused_before_anything_is_sent(connection: Any, payload: object) -> None:
    with pytest.raises(NotStorable):
        submit(connection, "plain", payload)
    connection.rollback()


def test_a_time_without_a_zone_is_refused(connection: Any) -> None:
    with pytest.raises(ValueError, match="zone"):
        submit(connection, "plain", {}, run_at=datetime(2100, 1, 1))


def test_the_sql_function_refuses_times_that_cannot_be_shown(store: Store) -> None:
    for time in ("infinity", "-infinity", "12026-01-01T00:00:00Z", "0044-03-15 00:00:00+00 BC"):
        with pytest.raises(Exception, match="run_at"):
            store.query(f"select deadsure.submit('plain', '1', run_at => '{time}')")


def test_the_sql_function_takes_what_nests_as_deep_as_http_takes_and_nothing_deeper(store: Store) -> None:
    deep = "[" * 100 + "]" * 100
    store.query("select deadsure.submit('plain', cast(:payload as jsonb))", payload=deep)
    for deeper in (f"[{deep}]", f'[1, {{"a": {deep[1:-1]}}}]', "[" * 5000 + "]" * 5000):
        with pytest.raises(Exception, match="deeper than 100"):
            store.query("select deadsure.submit('plain', cast(:payload as jsonb))", payload=deeper)
    assert len(tasks(store)) == 1


def test_the_sql_function_refuses_numbers_that_nobody_can_read(store: Store) -> None:
    for number in ("1e4300", "-1e5000", "9" * 4301):
        with pytest.raises(Exception, match="a number"):
            store.query("select deadsure.submit('plain', cast(:payload as jsonb))", payload=f'{{"a": [{number}]}}')
    for number in ("1e400", "-" + "9" * 4300, "1e-400"):
        store.query("select deadsure.submit('plain', cast(:payload as jsonb))", payload=f'{{"a": [{number}]}}')
    assert len([json.loads(row["payload"]) for row in store.query("select payload::text from deadsure.tasks")]) == 3


def test_http_takes_the_same_numbers_as_the_sql_function(api: Any, store: Store) -> None:
    assert api.ask("POST", "/tasks", b'{"kind": "plain", "payload": ' + b"9" * 4300 + b"}").status == 202
    assert api.ask("POST", "/tasks", b'{"kind": "plain", "payload": ' + b"9" * 4301 + b"}").status == 400
    assert len(tasks(store)) == 1


def test_the_sql_function_takes_the_last_moment_and_any_script(store: Store) -> None:
    store.query("select deadsure.submit('plain', '1', run_at => '9999-12-31T23:59:59.999999Z', queue => 'größe 界')")
    assert len(tasks(store)) == 1


def test_the_sql_function_needs_no_right_on_any_table(store: Store) -> None:
    store.query("create role only_submits")
    try:
        store.query("grant usage on schema deadsure to only_submits")
        call = (
            "grant execute on function deadsure.submit(text, jsonb, text, text, integer, timestamptz, integer, float8)"
        )
        store.query(f"{call} to only_submits")
        store.query("set role only_submits")
        store.query("select deadsure.submit('plain', '{}')")
        store.query("reset role")
        assert len(tasks(store)) == 1
    finally:
        store.query("reset role")
        store.query("drop owned by only_submits")
        store.query("drop role only_submits")


def test_http_and_sql_share_one_key(api: Any, store: Store) -> None:
    id = store.query("select deadsure.submit('plain', '{\"a\": 1}', 'shared', priority => 2) as id")[0]["id"]
    body = {"kind": "plain", "payload": {"a": 1.0}, "priority": 2}
    answer = api.ask("POST", "/tasks", body, {"Idempotency-Key": "shared"})
    assert (answer.body["id"], answer.headers["Idempotency-Replayed"]) == (str(id), "true")
