"""Idempotency-Key: one task per key, compared request by request, decided by the unique index."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from kit.api import Api, fresh_store, read, running
from kit.pool import Answer
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


FULL = {
    "kind": "harmless",
    "payload": {"a": [1, {"b": 2}]},
    "queue": "default",
    "priority": 1,
    "run_at": "2100-01-01T00:00:00Z",
    "max_attempts": 2,
    "timeout": 5,
}


def post(api: Api, key: str, body: dict[str, Any]) -> Answer:
    return api.ask("POST", "/tasks", body, {"Idempotency-Key": key})


def test_the_same_request_again_answers_with_the_same_task(api: Api, store: Store) -> None:
    first = post(api, "k", FULL)
    assert "Idempotency-Replayed" not in first.headers
    again = post(api, "k", FULL)
    assert (again.status, again.body) == (202, first.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    assert len(store.query("select id from deadsure.tasks")) == 1


def test_a_replay_shows_the_task_in_its_present_state(api: Api) -> None:
    first = post(api, "k", FULL)
    api.ask("POST", f"/tasks/{first.body['id']}/cancel")
    assert post(api, "k", FULL).body["state"] == "canceled"


def test_equal_json_in_another_form_is_the_same_request(api: Api) -> None:
    first = post(api, "k", {**FULL, "payload": {"x": 1, "y": 2.0}})
    other = {**FULL, "payload": {"y": 2, "x": 1.0}, "run_at": "2100-01-01T05:30:00+05:30", "timeout": 5.0}
    assert post(api, "k", other).body["id"] == first.body["id"]


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "plain", "max_attempts": 1},
        {"payload": {"a": [1, {"b": 3}]}},
        {"queue": "other"},
        {"queue": None},
        {"priority": 2},
        {"run_at": "2100-01-01T00:00:01Z"},
        {"max_attempts": 1},
        {"timeout": None},
    ],
    ids=str,
)
def test_another_request_under_the_same_key_is_refused(api: Api, changed: dict[str, Any]) -> None:
    first = post(api, "k", FULL)
    answer = post(api, "k", FULL | changed)
    assert answer.status == 422
    assert answer.body["type"] == "urn:deadsure:problem:idempotency-key-reused"
    assert api.ask("GET", f"/tasks/{first.body['id']}").body == first.body


def test_fifty_twins_at_once_make_one_task(api: Api, store: Store) -> None:
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda _: post(api, "twins", FULL), range(50)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body["id"] for answer in answers}) == 1
    assert len(store.query("select id from deadsure.tasks")) == 1
    assert len(store.query("select id from deadsure.scheduled")) == 1


def test_keys_are_compared_exactly(api: Api) -> None:
    assert post(api, "Key", FULL).body["id"] != post(api, "key", FULL).body["id"]


def test_a_quoted_key_is_the_key_inside_the_quotes(api: Api) -> None:
    assert post(api, "k-1", FULL).body["id"] == post(api, '"k-1"', FULL).body["id"]


def test_255_characters_are_a_key(api: Api) -> None:
    assert post(api, "k" * 255, FULL).status == 202


@pytest.mark.parametrize("key", ["", '""', "k" * 256, "a b", '"a', 'a"b', "schl\xfcssel"], ids=repr)
def test_a_bad_key_is_refused(api: Api, store: Store, key: str) -> None:
    assert post(api, key, FULL).status == 400
    assert not store.query("select id from deadsure.tasks")


def test_two_keys_are_refused(api: Api, store: Store) -> None:
    body = b'{"kind":"plain","payload":{}}'
    head = (
        f"POST /tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    with api.connect() as connection:
        connection.sendall(head.encode() + b"Idempotency-Key: a\r\nIdempotency-Key: a\r\n\r\n" + body)
        assert read_from(connection).status == 400
    assert not store.query("select id from deadsure.tasks")


def test_control_characters_in_a_key_are_refused(api: Api, store: Store) -> None:
    body = b'{"kind":"plain","payload":{}}'
    head = (
        f"POST /tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    with api.connect() as connection:
        connection.sendall(head.encode() + b"Idempotency-Key: a\x00b\r\n\r\n" + body)
        assert read_from(connection).status == 400
    assert not store.query("select id from deadsure.tasks")


def read_from(connection: Any) -> Answer:
    import http.client

    response = http.client.HTTPResponse(connection)
    response.begin()
    return read(response)
