"""/livez, /readyz, /workers and /openapi.json, and how an api child ends."""

from __future__ import annotations

import os

import pytest
from kit.api import Api
from kit.wait import wait_until
from openapi_spec_validator import validate

TASK = "01a22c1b-4037-754f-97f2-a463dd9dbbc7"


@pytest.mark.parametrize("phase", ["IDLE", "HANDLING", "FINISHING"])
def test_one_worker_that_is_idle_or_busy_makes_the_pool_ready(api: Api, phase: str) -> None:
    api.worker(phase)
    assert api.ask("GET", "/readyz").status == 200


@pytest.mark.parametrize("phase", ["STARTING", "CONNECTING", "STOPPING"])
def test_without_a_ready_worker_the_pool_is_not_ready(api: Api, phase: str) -> None:
    api.worker(phase)
    answer = api.ask("GET", "/readyz")
    assert (answer.status, answer.body["missing"]) == (503, ["no worker is ready"])


def test_the_recovery_and_the_lease_count(api: Api) -> None:
    api.worker("IDLE")
    api.header(recovered=False)
    assert "the recovery of the previous pool is not committed" in api.ask("GET", "/readyz").body["missing"]
    api.header(trusted=False)
    ready = api.ask("GET", "/readyz")
    assert ready.status == 503
    assert "the lease is not valid" in ready.body["missing"]
    assert api.ask("GET", "/livez").status == 200


def test_workers_are_shown_as_the_shared_memory_has_them(api: Api) -> None:
    assert api.ask("GET", "/workers").body == {"workers": []}
    api.worker("HANDLING", seat=1, pid=77, task=TASK, fence=3)
    shown = api.ask("GET", "/workers").body["workers"]
    assert len(shown) == 1
    assert shown[0].pop("since").endswith("Z")
    expected = {"slot": 2, "pid": 77, "state": "busy", "task": TASK, "exits": 2, "last_exit": "SIGKILL"}
    assert shown[0] == expected


def test_a_box_of_the_worker_before_is_not_shown_as_the_new_ones(api: Api) -> None:
    api.worker("HANDLING", pid=77, task=TASK, fence=3)
    api.tell("seat", seat=0, pid=78, exits=3, last_exit="SIGKILL")
    shown = api.ask("GET", "/workers").body["workers"][0]
    assert (shown["pid"], shown["state"], shown["task"]) == (78, "starting", None)


def test_the_openapi_document_is_valid_and_names_every_path(api: Api) -> None:
    document = api.ask("GET", "/openapi.json").body
    validate(document)
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) >= {"/tasks", "/tasks/{id}", "/tasks/{id}/cancel", "/workers", "/livez", "/readyz"}
    assert set(document["paths"]["/tasks"]) == {"get", "post"}


def test_an_idle_server_ends_at_once_when_it_is_told(api: Api) -> None:
    assert api.ask("GET", "/livez").status == 200
    assert api.stop() == 0


def test_a_silent_client_does_not_hold_the_server_past_its_drain(api: Api) -> None:
    with api.connect() as connection:
        connection.sendall(b"POST /tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 10\r\n\r\n")
        assert api.ask("GET", "/livez").status == 200
        assert api.stop() in (0, 1)


def test_a_connection_that_its_client_has_closed_is_closed_at_once(api: Api) -> None:
    """Otherwise clients that open one for each request use up the descriptors while nothing is asked."""
    before = _descriptors(api)
    for path in ("/livez", "/readyz", "/tasks", "/nowhere"):
        for _ in range(5):
            api.ask("GET", path)
    for _ in range(5):
        api.submit()
    wait_until(lambda: _descriptors(api) <= before + 8, "only the database's connections are new", 3)


def _descriptors(api: Api) -> int:
    return len(os.listdir(f"/proc/{api.pid}/fd"))
