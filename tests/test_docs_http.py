"""docs/http.md: its examples are run in their order against a real pool, its tables are held against the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from deadsure.drills.ledger_process import LedgerProcess
from deadsure.httpapi import connection, guard, listing, preconditions, problems, tokens, wire
from deadsure.httpapi.app import OPERATIONS
from deadsure.httpapi.resource import Operation
from deadsure.httpapi.settings import ApiSettings
from deadsure.runtime import db, dsn, executor, payload
from kit.api import Api
from kit.command import environment
from kit.pages import Page, Shell, code, same
from kit.pool import ROOT, Pool
from kit.store import Store
from kit.wait import wait_until
from kit.web import Unwell, serving

PAGE = Page.of("http.md")
ADDRESS = "http://127.0.0.1:8470"
#: The examples that need a pool with tokens.
WITH_TOKENS = ("token", "with-token")


# --- the examples


def test_every_example_comes_out_as_the_page_says(new_pool: Callable[..., Pool], store: Store, tmp_path: Path) -> None:
    run, shows = PAGE.blocks("run"), PAGE.blocks("shows")
    names = [name for name in run if name not in WITH_TOKENS]
    recovers = names.index("reconcile")

    def type_all(some: list[str]) -> None:
        for name in some:
            printed = shell.type(run[name])
            assert same(printed) == same(shows.get(name, printed)), name

    def is_only_looked_up_when_asked() -> bool:
        parked = "lookup_at > clock_timestamp() + interval '59 minutes'"
        done = store.query(f"select 1 as one from deadsure.unknowns where provider = 'ledger' and {parked}")
        store.query("update deadsure.unknowns set lookup_at = clock_timestamp() + interval '1 hour'")
        return bool(done)

    with serving(Unwell) as port:
        variables = {"DEADSURE_LEDGER_URL": f"http://127.0.0.1:{port}"}
        pool = new_pool(app="deadsure.drills.demo:app", workers=2, environment=variables).start()
        shell = Shell(tmp_path, {ADDRESS: f"http://127.0.0.1:{pool.port}"})
        transfer = pool.submit("ledger.transfer", {"account": "a", "amount": 5})
        assert pool.wait_for(transfer, "unknown")["unknown"]["needs"] == "lookup"
        is_only_looked_up_when_asked()
        type_all(names[:recovers])
        wait_until(is_only_looked_up_when_asked, "no lookup is under way")
    with LedgerProcess(tmp_path / "book", port=port, env=environment()):
        type_all(names[recovers:])
    assert set(shows) <= set(run)


def test_a_token_does_what_the_page_says(new_pool: Callable[..., Pool], tmp_path: Path) -> None:
    pool = new_pool(app="deadsure.drills.demo:app", options={"AUTH_TOKENS_FILE": str(tmp_path / "tokens")})
    shell = Shell(tmp_path, {ADDRESS: f"http://127.0.0.1:{pool.port}"})
    shell.type(PAGE.blocks("run")["token"])
    pool.start()
    assert same(shell.type(PAGE.blocks("run")["with-token"])) == same(PAGE.blocks("shows")["with-token"])


# --- the tables


def test_every_call_is_listed_with_its_scope_and_status() -> None:
    listed = [(code(call), scope.strip("`"), int(status)) for call, scope, status, _ in PAGE.table("The calls")]
    assert listed == [(f"{o.method} {o.path}", o.scope or "none", o.status) for o in _in_the_pages_order()]


def _in_the_pages_order() -> list[Operation]:
    first = ("/tasks", "/tasks/batch")
    posts = [o for o in OPERATIONS if o.method == "POST" and o.path in first]
    return [*posts, *(o for o in OPERATIONS if o not in posts)]


def test_every_problem_is_listed_with_its_status() -> None:
    text = "\n".join(file.read_text() for file in sorted((ROOT / "httpapi").glob("*.py")))
    made = {(name, int(status)) for status, name in re.findall(r"Problem\(\s*(\d+),\s*\"([\w-]+)\"", text)}
    mapped = {(name, status) for _, status, name in problems.TABLE}
    listed = [(code(name), int(status)) for name, status, _ in PAGE.table("Problems")]
    assert set(listed) == made | mapped | {("not-found", 404)}
    assert len(set(listed)) == len(listed)


def test_every_field_of_a_task_and_of_a_request_is_explained() -> None:
    assert [code(row[0]) for row in PAGE.table("Submitting")] == list(wire.NewTask.__struct_fields__)
    fields, causes = _two_tables(PAGE.section("Reading a task"))
    assert fields == list(wire.Task.__struct_fields__)
    schema = (ROOT / "runtime/sql/migrations/0001_initial.sql").read_text()
    allowed = re.search(r"unknown_cause not in \((.*?)\)", schema, re.DOTALL)
    assert allowed is not None
    assert set(causes) == set(re.findall(r"'(\w+)'", allowed[1]))
    said = PAGE.section("Reading a task")
    assert all(f"`{name}`" in said for name in (*wire.Unknown.__struct_fields__, *wire.Effect.__struct_fields__))
    assert [code(row[0]) for row in PAGE.table("Resolution")] == list(wire.Resolution.__struct_fields__)


def _two_tables(text: str) -> tuple[list[str], list[str]]:
    first, second = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    names = [re.findall(r"^\| `(\w+)`", table, re.MULTILINE) for table in (first, second)]
    return names[0], names[1]


def test_every_event_that_is_written_is_listed() -> None:
    text = "\n".join(file.read_text() for file in sorted((ROOT / "runtime/sql").glob("*.sql")))
    chosen = re.findall(
        r"insert into deadsure\.events \(task_id, event, detail\)\s+select id, (case .*? end|'\w+')", text
    )
    assert len(chosen) == text.count("insert into deadsure.events")
    written = {name for event in chosen for name in re.findall(r"'(\w+)'", event)}
    assert {code(row[0]) for row in PAGE.table("Events")} == written


def test_every_scope_is_listed() -> None:
    assert [code(row[0]) for row in PAGE.table("Tokens")] == list(tokens.SCOPES)


# --- what the page says beside its examples


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        (b'{"kind": "plain", "payload": {}', 400, "malformed-json"),
        (b'{"kind": "plain", "payload": NaN}', 400, "malformed-json"),
        (b'{"kind": "plain", "payload": ' + b"[" * 9000 + b"]" * 9000 + b"}", 400, "malformed-json"),
        (b'{"kind": "plain", "payload": {}, "max_attempts": 2}', 422, "invalid-request"),
        (b'{"kind": "plain", "payload": {}, "retries": 1}', 422, "invalid-request"),
        (b'{"kind": "nobody", "payload": {}}', 422, "unknown-kind"),
    ],
)
def test_a_bad_submit_gets_the_problem_that_is_listed(shared_api: Api, body: bytes, status: int, name: str) -> None:
    answer = shared_api.ask("POST", "/tasks", body)
    assert (answer.status, answer.body["type"]) == (status, f"urn:deadsure:problem:{name}")


def test_a_field_left_out_and_its_default_are_two_requests(api: Api) -> None:
    key = {"Idempotency-Key": "k"}
    assert api.ask("POST", "/tasks", {"kind": "plain", "payload": {}}, key).status == 202
    assert api.ask("POST", "/tasks", {"kind": "plain", "payload": {}, "priority": 0}, key).status == 422


def test_after_its_row_was_removed_a_key_makes_a_new_task(api: Api, store: Store) -> None:
    key = {"Idempotency-Key": "k"}
    first = api.ask("POST", "/tasks", {"kind": "plain", "payload": {}}, key).body["id"]
    store.query("delete from deadsure.ready")
    store.query("delete from deadsure.tasks")
    again = api.ask("POST", "/tasks", {"kind": "plain", "payload": {}}, key)
    assert again.body["id"] != first
    assert "Idempotency-Replayed" not in again.headers


def test_the_limits_are_those_of_the_code() -> None:
    settings = ApiSettings(db.Settings(dsn.parse("postgresql://a@b/c")))
    said = {row[0]: row[1] for row in PAGE.table("Limits")}
    assert (settings.max_body, settings.body_timeout, executor.MAX_RESULT) == (2**20, 10.0, 2**20)
    assert said["body"] == "1 MiB (`[http] max_body`), and 10 s to arrive"
    assert said["a result"].startswith("1 MiB")
    assert said["nesting of a payload"] == str(payload.MAX_DEPTH)
    head = f"{guard.LARGEST_HEAD >> 10} KiB, {guard.MOST_HEADERS} headers, and 10 s to arrive"
    assert said["target and headers"] == head
    assert said["an answer of which nothing is taken"].startswith(f"{connection.PATIENCE:g} s")
    assert said["waiting requests"] == f"{settings.max_waiters} per api process"
    assert said["a page of a list"].startswith(f"{listing.MAX_LIMIT} tasks")
    assert f"at most {preconditions.LONGEST_WAIT}" in PAGE.section("Waiting")
    assert f"({settings.request_budget:g} s)" in said["time for an answer"]
