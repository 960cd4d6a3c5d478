"""POST /tasks/{id}/cancel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime.model import ExitProof, Outcome
from deadsure.runtime.store import recover
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


MISSING = "01a22c1b-4037-754f-97f2-a463dd9dbbc7"


def test_a_queued_task_is_canceled_at_once_and_never_claimed(api: Api, store: Store) -> None:
    task = api.submit()
    answer = api.ask("POST", f"/tasks/{task['id']}/cancel")
    assert (answer.status, answer.body["state"]) == (202, "canceled")
    assert answer.body["finished_at"] is not None
    assert store.worker().claim() is None
    assert not store.query("select id from deadsure.ready")


def test_a_scheduled_task_is_canceled_at_once(api: Api, store: Store) -> None:
    task = api.submit("plain", {}, run_at="2100-01-01T00:00:00Z")
    assert api.ask("POST", f"/tasks/{task['id']}/cancel").body["state"] == "canceled"
    assert not store.query("select id from deadsure.scheduled")


def test_a_repeated_cancel_changes_nothing(api: Api) -> None:
    task = api.submit()
    first = api.ask("POST", f"/tasks/{task['id']}/cancel")
    again = api.ask("POST", f"/tasks/{task['id']}/cancel")
    assert (again.status, again.body, again.headers["ETag"]) == (202, first.body, first.headers["ETag"])


def test_a_running_task_is_asked_to_stop_through_its_own_seat(api: Api, store: Store) -> None:
    task = api.submit()
    claimed = store.worker().claim()
    assert claimed is not None
    api.worker("HANDLING", seat=1, task=task["id"], fence=claimed.fence)
    answer = api.ask("POST", f"/tasks/{task['id']}/cancel")
    assert (answer.status, answer.body["state"], answer.body["cancel_requested"]) == (202, "running", True)
    assert api.tell("cancel_requested", seat=1, task=task["id"], fence=claimed.fence)
    assert not api.tell("cancel_requested", seat=1, task=task["id"], fence=claimed.fence + 1)
    assert not api.tell("cancel_requested", seat=0, task=task["id"], fence=claimed.fence)


def test_an_unknown_task_keeps_the_request(api: Api, store: Store) -> None:
    task = api.submit()
    worker = store.worker()
    assert worker.claim() is not None
    recover.recover_worker(store.connection, worker.slot.id, ExitProof(signal="SIGKILL"))
    answer = api.ask("POST", f"/tasks/{task['id']}/cancel")
    assert (answer.status, answer.body["state"], answer.body["cancel_requested"]) == (202, "unknown", True)


@pytest.mark.parametrize("outcome", [Outcome("succeeded", "1"), Outcome("failed", reason="r")], ids=lambda o: o.state)
def test_what_has_ended_otherwise_cannot_be_canceled(api: Api, store: Store, outcome: Outcome) -> None:
    task = api.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    worker.finish(claimed, outcome)
    answer = api.ask("POST", f"/tasks/{task['id']}/cancel")
    assert (answer.status, answer.body["state"]) == (409, outcome.state)


def test_a_queued_task_whose_earlier_request_may_still_land_becomes_unknown(api: Api, store: Store) -> None:
    task = api.submit()
    store.query("update deadsure.tasks set unsettled = true, provider = 'p'")
    shown = api.ask("POST", f"/tasks/{task['id']}/cancel").body
    assert (shown["state"], shown["cancel_requested"]) == ("unknown", True)
    assert (shown["unknown"]["cause"], shown["unknown"]["needs"]) == ("unsettled_attempt", "decision")
    assert len(store.query("select id from deadsure.unknowns where provider = 'p'")) == 1
    assert store.worker().claim() is None


def test_the_request_stands_in_the_events_once(api: Api) -> None:
    task = api.submit()
    api.ask("POST", f"/tasks/{task['id']}/cancel")
    api.ask("POST", f"/tasks/{task['id']}/cancel")
    events = api.ask("GET", f"/tasks/{task['id']}/events").body["events"]
    assert [(event["event"], event["detail"]["actor"]) for event in events] == [("cancel_requested", "loopback")]


def test_a_task_that_is_not_there_cannot_be_canceled(api: Api) -> None:
    assert api.ask("POST", f"/tasks/{MISSING}/cancel").status == 404
