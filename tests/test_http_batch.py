"""POST /tasks/batch: all or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from kit.api import Api, fresh_store, running
from kit.store import Store


@pytest.fixture(scope="module")
def store(server: EmbeddedPostgres) -> Iterator[Store]:
    """One database for all tests of this file; each begins without tasks."""
    with fresh_store(server) as opened:
        yield opened


@pytest.fixture(scope="module")
def api(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One api child for all tests of this file."""
    with running(store.settings, tmp_path_factory.mktemp("api")) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_tasks(store: Store) -> None:
    store.query("truncate deadsure.tasks, deadsure.ready, deadsure.scheduled, deadsure.unknowns, deadsure.events")


GOOD: dict[str, Any] = {"kind": "plain", "payload": {}}


def count(store: Store) -> int:
    return len(store.query("select id from deadsure.tasks"))


def test_a_batch_is_answered_in_its_order(api: Api, store: Store) -> None:
    tasks = [{**GOOD, "payload": number} for number in range(1000)]
    answer = api.ask("POST", "/tasks/batch", {"tasks": tasks})
    assert answer.status == 202
    assert [task["payload"] for task in answer.body["tasks"]] == list(range(1000))
    assert count(store) == 1000
    assert api.tell("woken") > 0


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ({"kind": "nobody.has.it", "payload": {}}, "$.tasks[1]"),
        ({**GOOD, "max_attempts": 2}, "$.tasks[1]"),
        ({**GOOD, "timeout": -1}, "$.tasks[1].timeout"),
        ({**GOOD, "run_at": "tomorrow"}, "$.tasks[1].run_at"),
        ({**GOOD, "payload": ["\0"]}, "$.tasks[1].payload[0]"),
        ({**GOOD, "idempotency_key": "a b"}, "$.tasks[1].idempotency_key"),
        ({**GOOD, "idempotency_key": "taken"}, "$.tasks[1]"),
    ],
    ids=str,
)
def test_one_bad_task_stops_the_whole_batch_and_is_named(
    api: Api, store: Store, bad: dict[str, Any], where: str
) -> None:
    api.ask("POST", "/tasks", {**GOOD, "payload": "other"}, {"Idempotency-Key": "taken"})
    answer = api.ask("POST", "/tasks/batch", {"tasks": [GOOD, bad, GOOD]})
    assert answer.status == (400 if bad.get("payload") == ["\0"] else 422)
    assert where in answer.body["detail"]
    assert count(store) == 1


def test_a_batch_sent_again_with_its_keys_stores_nothing_twice(api: Api, store: Store) -> None:
    batch = {"tasks": [{**GOOD, "payload": n, "idempotency_key": f"k{n}"} for n in range(3)]}
    first = api.ask("POST", "/tasks/batch", batch)
    assert api.ask("POST", "/tasks/batch", batch).body == first.body
    assert count(store) == 3


def test_twins_inside_a_batch_are_one_task(api: Api, store: Store) -> None:
    twin = {**GOOD, "idempotency_key": "twin"}
    answer = api.ask("POST", "/tasks/batch", {"tasks": [twin, twin]})
    assert answer.status == 202
    assert len({task["id"] for task in answer.body["tasks"]}) == 1
    assert count(store) == 1


def test_a_key_in_the_header_is_refused_for_a_batch(api: Api) -> None:
    assert api.ask("POST", "/tasks/batch", {"tasks": [GOOD]}, {"Idempotency-Key": "k"}).status == 400


@pytest.mark.parametrize("tasks", [[], [GOOD] * 1001], ids=len)
def test_a_batch_has_1_to_1000_tasks(api: Api, store: Store, tasks: list[Any]) -> None:
    assert api.ask("POST", "/tasks/batch", {"tasks": tasks}).status == 422
    assert count(store) == 0


def test_one_key_for_two_different_requests_in_one_batch_names_no_task(api: Api, store: Store) -> None:
    batch = [{**GOOD, "payload": n, "idempotency_key": "twice"} for n in range(2)]
    answer = api.ask("POST", "/tasks/batch", {"tasks": batch})
    assert (answer.status, answer.body["type"]) == (422, "urn:deadsure:problem:idempotency-key-reused")
    assert "two tasks of this batch have the same idempotency key" in answer.body["detail"]
    assert count(store) == 0
