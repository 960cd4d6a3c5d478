"""POST /tasks: what is accepted, and that 202 means stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kit.api import Api
from kit.store import Store

APP = """
from dataclasses import dataclass
import msgspec
from deadsure import App
app = App()
@dataclass
class Transfer:
    account: str
    amount: int
class Place(msgspec.Struct):
    path: str
@app.task("typed.dataclass")
def a(payload: Transfer): ...
@app.task("typed.struct")
def b(payload: Place): ...
@app.task("plain")
def c(payload): ...
"""


def test_a_task_that_was_accepted_is_stored_and_shown_as_it_was_sent(api: Api, store: Store) -> None:
    payload = {"money": 1.50, "list": [1, None, True, "ü\u2028"], "big": 2**80}
    answer = api.ask("POST", "/tasks", {"kind": "plain", "payload": payload})
    assert answer.status == 202
    assert answer.headers["Location"] == f"/tasks/{answer.body['id']}"
    assert answer.body["payload"] == payload
    assert answer.body["state"] == "queued"
    assert answer.body["result"] is None
    assert answer.body["created_at"].endswith("Z")
    assert api.ask("GET", answer.headers["Location"]).body == answer.body
    assert [str(row["id"]) for row in store.query("select id from deadsure.ready")] == [answer.body["id"]]


def test_what_is_left_out_comes_from_the_kind(api: Api) -> None:
    task = api.submit("harmless")
    assert (task["queue"], task["priority"], task["max_attempts"], task["timeout"]) == ("default", 0, 3, None)


def test_what_is_asked_for_is_stored(api: Api, store: Store) -> None:
    task = api.submit(
        "harmless", {}, queue="other", priority=-7, max_attempts=2, timeout=1.5, run_at="2100-01-01T05:30:00+05:30"
    )
    assert (task["queue"], task["priority"], task["max_attempts"], task["timeout"]) == ("other", -7, 2, 1.5)
    assert task["run_at"] == "2100-01-01T00:00:00Z"
    assert len(store.query("select id from deadsure.scheduled")) == 1
    assert not store.query("select id from deadsure.ready")


def test_a_run_at_in_the_past_may_run_now(api: Api, store: Store) -> None:
    api.submit("plain", {}, run_at="2001-01-01T00:00:00.5Z")
    assert len(store.query("select id from deadsure.ready")) == 1


def test_idle_workers_are_woken_after_the_commit(api: Api) -> None:
    assert api.tell("woken") == 0
    api.submit()
    assert api.tell("woken") > 0


@pytest.mark.parametrize(
    "payload", [None, [], "", 0, {}, {"": {"": []}}, "\\u0000 as six characters", "a\\\\u0000b"], ids=repr
)
def test_every_json_value_can_be_a_payload(shared_api: Api, payload: object) -> None:
    task = shared_api.submit("plain", payload)
    assert shared_api.ask("GET", f"/tasks/{task['id']}").body["payload"] == payload


def test_an_unknown_kind_is_refused_by_name(api: Api, store: Store) -> None:
    answer = api.ask("POST", "/tasks", {"kind": "nobody.has.it", "payload": {}})
    assert answer.status == 422
    assert answer.body["type"] == "urn:deadsure:problem:unknown-kind"
    assert "nobody.has.it" in answer.body["detail"]
    assert not store.query("select id from deadsure.tasks")


def test_a_kind_may_still_come_before_the_pool_was_ever_ready(api: Api) -> None:
    api.header(ever_ready=False)
    answer = api.ask("POST", "/tasks", {"kind": "nobody.has.it", "payload": {}})
    assert answer.status == 503
    assert answer.headers["Retry-After"] == "1"
    assert api.submit("plain")["state"] == "queued"


def test_more_attempts_than_the_kind_allows_are_refused(api: Api, store: Store) -> None:
    answer = api.ask("POST", "/tasks", {"kind": "harmless", "payload": {}, "max_attempts": 4})
    assert answer.status == 422
    assert "max_attempts must be from 1 to 3" in answer.body["detail"]
    assert not store.query("select id from deadsure.tasks")


def test_a_payload_that_the_handler_would_refuse_is_refused_at_submit(
    new_api: Callable[..., Api], store: Store, tmp_path: Path
) -> None:
    (tmp_path / "typed_app.py").write_text(APP)
    api = new_api(app="typed_app:app", app_dir=str(tmp_path))
    store.register("typed.dataclass", "typed.struct", "elsewhere")
    api.until_loaded()
    wrong = api.ask("POST", "/tasks", {"kind": "typed.dataclass", "payload": {"account": "a", "amount": "12"}})
    assert wrong.status == 422
    assert "`$.payload.amount`" in wrong.body["detail"]
    assert api.ask("POST", "/tasks", {"kind": "typed.struct", "payload": {}}).status == 422
    batch = {"tasks": [{"kind": "plain", "payload": 1}, {"kind": "typed.struct", "payload": {"path": 3}}]}
    assert "`$.tasks[1].payload.path`" in api.ask("POST", "/tasks/batch", batch).body["detail"]
    assert not store.query("select id from deadsure.tasks")
    assert api.submit("typed.dataclass", {"account": "a", "amount": 12})["state"] == "queued"
    assert api.submit("elsewhere", {"anything": "goes"})["state"] == "queued"


def test_an_app_that_cannot_be_loaded_stops_submits_and_nothing_else(
    new_api: Callable[..., Api], store: Store, tmp_path: Path
) -> None:
    (tmp_path / "broken_app.py").write_text("raise RuntimeError('broken on purpose')")
    task = store.submit()
    api = new_api(app="broken_app:app", app_dir=str(tmp_path))
    answer = api.until(lambda: api.ask("POST", "/tasks", {"kind": "plain", "payload": {}}), "broken on purpose")
    assert answer.status == 503
    assert answer.headers["Retry-After"]
    assert api.ask("GET", f"/tasks/{task}").status == 200


def test_livez_answers_while_the_app_is_still_being_imported(new_api: Callable[..., Api], tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    (tmp_path / "slow_app.py").write_text(waits + APP)
    api = new_api(app="slow_app:app", app_dir=str(tmp_path))
    assert api.ask("GET", "/livez").status == 200
    assert api.ask("POST", "/tasks", {"kind": "plain", "payload": {}}).status == 503
    go.touch()
    api.until_loaded()
    assert api.submit("plain")["state"] == "queued"


def test_an_app_that_insists_on_the_main_thread_can_be_loaded(new_api: Callable[..., Api], tmp_path: Path) -> None:
    insists = "import signal\nsignal.signal(signal.SIGUSR2, signal.SIG_IGN)\n"
    (tmp_path / "main_thread_app.py").write_text(insists + APP)
    api = new_api(app="main_thread_app:app", app_dir=str(tmp_path))
    api.until_loaded()
    assert api.stop() == 0


def test_sigterm_ends_an_api_whose_app_hangs_in_its_import(new_api: Callable[..., Api], tmp_path: Path) -> None:
    (tmp_path / "hanging_app.py").write_text("import time\nwhile True: time.sleep(60)\n")
    api = new_api(app="hanging_app:app", app_dir=str(tmp_path), drain_timeout=0.5)
    assert api.ask("GET", "/livez").status == 200
    assert api.stop() == 1
