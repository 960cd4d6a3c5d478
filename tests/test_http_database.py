"""Database trouble: 503 with Retry-After, never 404 and never 500; and what was in doubt is settled or named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from deadsure.runtime import db
from deadsure.runtime.dsn import Host
from kit.api import Api
from kit.fault_proxy import FaultProxy
from kit.fault_rules import Fault
from kit.pool import Answer
from kit.postgres import free_port
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.faults
MISSING = "01a22c1b-4037-754f-97f2-a463dd9dbbc7"
TASK = {"kind": "plain", "payload": {}}

CALLS = [
    ("POST", "/tasks", TASK),
    ("POST", "/tasks/batch", {"tasks": [TASK]}),
    ("GET", "/tasks", None),
    ("GET", f"/tasks/{MISSING}", None),
    ("GET", "/tasks/not-an-id", None),
    ("GET", f"/tasks/{MISSING}/events", None),
    ("POST", f"/tasks/{MISSING}/cancel", None),
]


def through(settings: db.Settings, port: int) -> db.Settings:
    return replace(settings, dsn=replace(settings.dsn, hosts=(Host("127.0.0.1", port),)))


def unavailable(answer: Answer) -> bool:
    return answer.status == 503 and answer.headers["Retry-After"] == "1"


@pytest.fixture
def proxy(store: Store) -> Iterator[FaultProxy]:
    made = FaultProxy(store.settings.dsn.hosts[0])
    yield made
    made.close()


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_without_a_database_everything_is_unavailable(
    new_api: Callable[..., Api], store: Store, method: str, path: str, body: object
) -> None:
    api = new_api(through(store.settings, free_port()))
    answer = api.ask(method, path, body)
    assert unavailable(answer)
    assert "127.0.0.1" not in answer.body["detail"]  # where the database is, is for operators
    assert api.ask("GET", "/livez").status == 200
    assert api.ask("GET", "/workers").status == 200
    ready = api.ask("GET", "/readyz")
    assert "the database does not answer" in ready.body["missing"]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_without_the_schema_everything_is_unavailable(
    api: Api, store: Store, method: str, path: str, body: object
) -> None:
    store.query("drop schema deadsure cascade")
    assert unavailable(api.ask(method, path, body))
    assert any("schema" in what for what in api.ask("GET", "/readyz").body["missing"])


def test_sessions_that_were_ended_are_replaced_without_anybody_noticing(api: Api, store: Store) -> None:
    path = f"/tasks/{api.submit()['id']}"
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: api.ask("GET", path), range(8)))
    ended = store.query(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ 'deadsure api'"
    )
    assert len(ended) >= 2
    assert api.ask("GET", path).status == 200
    assert api.submit()["state"] == "queued"


def test_a_database_that_comes_back_is_used_again(new_api: Callable[..., Api], store: Store) -> None:
    port = free_port()
    api = new_api(through(store.settings, port))
    assert unavailable(api.ask("POST", "/tasks", TASK))
    host = store.settings.dsn.hosts[0]
    forward = FaultProxy(host)
    api_again = new_api(through(store.settings, forward.port))
    assert api_again.submit()["state"] == "queued"
    forward.close()


def test_a_submit_whose_answer_was_lost_is_stored_once(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy
) -> None:
    api = new_api(through(store.settings, proxy.port))
    api.submit("plain", "first")
    proxy.add("submit", Fault.ANSWER_LOST, holding=b"marked", times=1)
    task = api.submit("plain", "marked")
    proxy.wait("answer lost")
    assert task["payload"] == "marked"
    assert len(store.query("select id from deadsure.tasks where payload = '\"marked\"'")) == 1


def test_a_keyed_submit_whose_answer_was_lost_is_no_replay(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy
) -> None:
    api = new_api(through(store.settings, proxy.port))
    proxy.add("submit", Fault.ANSWER_LOST, holding=b"marked", times=1)
    answer = api.ask("POST", "/tasks", {"kind": "plain", "payload": "marked"}, {"Idempotency-Key": "k"})
    proxy.wait("answer lost")
    assert (answer.status, answer.headers["Idempotency-Replayed"]) == (202, None)


def test_a_submit_that_stays_in_doubt_names_its_task(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy
) -> None:
    api = new_api(through(store.settings, proxy.port))
    proxy.add("submit", Fault.ANSWER_LOST, holding=b"marked")
    answer = api.ask("POST", "/tasks", {"kind": "plain", "payload": "marked"})
    assert unavailable(answer)
    assert answer.body["type"] == "urn:deadsure:problem:outcome-in-doubt"
    proxy.no_more_faults()
    assert api.ask("GET", f"/tasks/{answer.body['task_id']}").body["payload"] == "marked"


@pytest.mark.parametrize(("statement", "path"), [("page", "/tasks"), ("tasks", "/tasks/{id}")])
def test_a_read_is_never_in_doubt(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy, statement: str, path: str
) -> None:
    api = new_api(through(store.settings, proxy.port))
    task = api.submit()
    proxy.add(statement, Fault.ANSWER_LOST)
    answer = api.ask("GET", path.format(**task))
    assert unavailable(answer)
    assert answer.body["type"] == "urn:deadsure:problem:database-unavailable"
    assert "nothing was changed" in answer.body["detail"]


def test_a_batch_whose_commit_was_lost_is_stored_once(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy
) -> None:
    api = new_api(through(store.settings, proxy.port))
    proxy.add("commit", Fault.ANSWER_LOST, times=1)
    answer = api.ask("POST", "/tasks/batch", {"tasks": [TASK, TASK]})
    proxy.wait("answer lost")
    assert answer.status == 202
    assert len(store.query("select id from deadsure.tasks")) == 2


def test_a_cancel_whose_answer_was_lost_is_carried_out(
    new_api: Callable[..., Api], store: Store, proxy: FaultProxy
) -> None:
    api = new_api(through(store.settings, proxy.port))
    task = api.submit()
    proxy.add("cancel", Fault.ANSWER_LOST, times=1)
    answer = api.ask("POST", f"/tasks/{task['id']}/cancel")
    proxy.wait("answer lost")
    assert (answer.status, answer.body["state"]) == (202, "canceled")


def test_a_blocked_database_is_unavailable_within_the_budget(api: Api, store: Store) -> None:
    task = api.submit()
    blocker = store.connect()
    with blocker.transaction():
        blocker.script("lock table deadsure.tasks in access exclusive mode")
        for method, path, body in (("GET", f"/tasks/{task['id']}", None), ("POST", "/tasks", TASK)):
            began = time.monotonic()
            assert unavailable(api.ask(method, path, body))
            assert time.monotonic() - began < 6
        assert api.ask("GET", "/livez").status == 200
    assert api.ask("GET", f"/tasks/{task['id']}").status == 200


def test_a_saturated_pool_says_so(new_api: Callable[..., Api], store: Store) -> None:
    api = new_api(db_connections=1, request_budget=1.0)
    task = api.submit()
    blocker, gate = store.connect(), threading.Barrier(8)

    def ask(_: int) -> Answer:
        gate.wait(10)
        return api.ask("GET", f"/tasks/{task['id']}")

    with ThreadPoolExecutor(8) as threads, blocker.transaction():
        blocker.script("lock table deadsure.tasks in access exclusive mode")
        answers = list(threads.map(ask, range(8)))
    assert all(unavailable(answer) for answer in answers)
    assert any("in use" in answer.body["detail"] for answer in answers)


def test_a_blocked_key_blocks_nobody_else(api: Api, store: Store) -> None:
    api.submit()
    holder = store.connect()
    with ThreadPoolExecutor(30) as threads, holder.transaction():
        # The same key, not committed yet, in somebody's own transaction.
        holder.script("select deadsure.submit('plain', '{}', 'blocked')")

        def post(number: int) -> Answer:
            headers = {"Idempotency-Key": "blocked"} if number % 10 == 0 else {}
            return api.ask("POST", "/tasks", TASK, headers)

        answers = list(threads.map(post, range(30)))
    assert all(answer.status == 202 for number, answer in enumerate(answers) if number % 10)
    assert all(unavailable(answer) for number, answer in enumerate(answers) if number % 10 == 0)
    replay = api.ask("POST", "/tasks", TASK, {"Idempotency-Key": "blocked"})
    assert (replay.status, replay.headers["Idempotency-Replayed"]) == (202, "true")


def test_submits_that_wait_together_are_stored_in_one_statement(api: Api, store: Store) -> None:
    api.submit()
    blocker = store.connect()
    with ThreadPoolExecutor(40) as threads:
        with blocker.transaction():
            # Short enough for the flush to wait, so that the others gather behind it.
            blocker.script("lock table deadsure.kinds in access exclusive mode")
            posts = [threads.submit(api.ask, "POST", "/tasks", TASK) for _ in range(40)]
            wait_until(lambda: waiting(store) > 0, "a statement waits for the lock")
        assert {post.result(20).status for post in posts} == {202}
    rows = store.query("select count(*) as tasks, count(distinct cast(xmin as text)) as commits from deadsure.tasks")
    assert rows[0]["tasks"] == 41
    assert int(str(rows[0]["commits"])) < 41


def waiting(store: Store) -> int:
    rows: list[dict[str, Any]] = store.query(
        "select count(*) as n from pg_stat_activity where application_name ~ 'api' and wait_event_type = 'Lock'"
    )
    return int(rows[0]["n"])
