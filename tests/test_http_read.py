"""Reading tasks: ETag, waiting, lists and events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from deadsure.runtime.model import Claimed, ExitProof, Outcome
from deadsure.runtime.store import recover
from kit.api import Api
from kit.store import Store, WorkerRow
from kit.wait import wait_until

MISSING = "01a22c1b-4037-754f-97f2-a463dd9dbbc7"


def claim(store: Store) -> tuple[WorkerRow, Claimed]:
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    return worker, claimed


def test_a_task_that_is_not_there_is_not_found(api: Api) -> None:
    for path in (f"/tasks/{MISSING}", f"/tasks/{MISSING}/events"):
        answer = api.ask("GET", path)
        assert (answer.status, answer.body["type"]) == (404, "urn:deadsure:problem:no-such-task")


def test_an_id_in_capitals_is_the_same_id(api: Api) -> None:
    task = api.submit()
    assert api.ask("GET", f"/tasks/{task['id'].upper()}").body == task


def test_every_write_changes_the_etag(api: Api, store: Store) -> None:
    path = f"/tasks/{api.submit()['id']}"
    seen = [api.ask("GET", path).headers["ETag"]]
    worker, claimed = claim(store)
    seen.append(api.ask("GET", path).headers["ETag"])
    worker.finish(claimed, Outcome("succeeded", "{}"))
    seen.append(api.ask("GET", path).headers["ETag"])
    assert len(set(seen)) == 3


def test_a_version_that_is_known_is_not_sent_again(api: Api) -> None:
    path = f"/tasks/{api.submit()['id']}"
    tag = api.ask("GET", path).headers["ETag"]
    for header in (tag, f"W/{tag}", f'"99", {tag}', "*"):
        answer = api.ask("GET", path, headers={"If-None-Match": header})
        assert (answer.status, answer.body, answer.headers["ETag"]) == (304, b"", tag)
    assert api.ask("GET", path, headers={"If-None-Match": '"99"'}).status == 200


def test_the_result_is_shown_once_it_has_succeeded(api: Api, store: Store) -> None:
    path = f"/tasks/{api.submit()['id']}"
    worker, claimed = claim(store)
    running = api.ask("GET", path).body
    assert (running["state"], running["attempts"], running["fence"], running["result"]) == ("running", 1, 1, None)
    worker.finish(claimed, Outcome("succeeded", '{"words": 2}'))
    done = api.ask("GET", path).body
    assert (done["state"], done["result"]) == ("succeeded", {"words": 2})
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]


def test_what_nobody_can_say_is_shown_with_its_evidence(api: Api, store: Store) -> None:
    path = f"/tasks/{api.submit()['id']}"
    worker, _ = claim(store)
    recover.recover_worker(store.connection, worker.slot.id, ExitProof(signal="SIGKILL", phase="handling"))
    task = api.ask("GET", path).body
    unknown = task["unknown"]
    assert task["state"] == "unknown"
    assert unknown.pop("since").endswith("Z")
    assert unknown == {
        "cause": "worker_died",
        "proof": "exit",
        "signal": "SIGKILL",
        "phase": "handling",
        "needs": "decision",
    }
    events = api.ask("GET", f"{path}/events").body["events"]
    assert [event["event"] for event in events] == ["recovered"]
    assert events[0]["detail"]["to"] == "unknown"
    assert events[0]["at"].endswith("Z")


def test_a_task_without_events_has_an_empty_list(api: Api) -> None:
    assert api.ask("GET", f"/tasks/{api.submit()['id']}/events").body == {"events": []}


def test_waiting_ends_when_the_task_has_ended(api: Api, store: Store) -> None:
    path = f"/tasks/{api.submit()['id']}"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(api.ask, "GET", path, headers={"Prefer": "wait=30"}, timeout=40)
        worker, claimed = claim(store)
        worker.finish(claimed, Outcome("succeeded", "1"))
        answer = waiting.result(20)
    assert answer.body["state"] == "succeeded"
    assert answer.headers["Preference-Applied"] == "wait=30"


def test_waiting_with_a_known_version_ends_at_the_next_one(api: Api, store: Store) -> None:
    task = api.submit()
    path = f"/tasks/{task['id']}"
    tag = api.ask("GET", path).headers["ETag"]
    with ThreadPoolExecutor(1) as threads:
        headers = {"Prefer": "wait=30", "If-None-Match": tag}
        waiting = threads.submit(api.ask, "GET", path, headers=headers, timeout=40)
        claim(store)
        answer = waiting.result(20)
    assert answer.body["state"] == "running"
    assert answer.headers["ETag"] != tag


def test_waiting_in_vain_answers_with_the_task_as_it_is(api: Api) -> None:
    path = f"/tasks/{api.submit()['id']}"
    assert api.ask("GET", path, headers={"Prefer": "wait=1"}).body["state"] == "queued"
    tag = api.ask("GET", path).headers["ETag"]
    assert api.ask("GET", path, headers={"Prefer": "wait=1", "If-None-Match": tag}).status == 304


def test_what_has_ended_is_not_waited_for(api: Api, store: Store) -> None:
    path = f"/tasks/{api.submit()['id']}"
    worker, claimed = claim(store)
    worker.finish(claimed, Outcome("succeeded", "1"))
    assert api.ask("GET", path, headers={"Prefer": "wait=30"}, timeout=15).status == 200


@pytest.mark.parametrize("prefer", ["wait=x", "wait=-1", "respond-async", "", "wait"])
def test_a_preference_that_is_not_known_is_ignored(shared_api: Api, prefer: str) -> None:
    path = f"/tasks/{shared_api.submit()['id']}"
    answer = shared_api.ask("GET", path, headers={"Prefer": prefer}, timeout=15)
    assert (answer.status, answer.headers["Preference-Applied"]) == (200, None)


def test_too_many_waiters_are_told_so_and_one_that_goes_makes_room(new_api: Callable[..., Api]) -> None:
    api = new_api(max_waiters=2)
    path = f"/tasks/{api.submit()['id']}"
    ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=30\r\n\r\n".encode()
    first, second = api.connect(), api.connect()
    first.sendall(ask)
    second.sendall(ask)
    refused = wait_until(lambda: too_many(api, path), "the third is refused")
    assert refused.headers["Retry-After"] == "1"
    first.close()
    wait_until(lambda: not too_many(api, path), "there is room again")
    second.close()


def too_many(api: Api, path: str) -> Any:
    answer = api.ask("GET", path, headers={"Prefer": "wait=0"})  # takes nobody's place
    return answer if answer.status == 429 else None


def test_a_drain_lets_those_who_wait_go_with_an_answer(new_api: Callable[..., Api]) -> None:
    api = new_api(max_waiters=1)
    path = f"/tasks/{api.submit()['id']}"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(api.ask, "GET", path, headers={"Prefer": "wait=30"}, timeout=40)
        wait_until(lambda: too_many(api, path), "somebody waits")
        began = time.monotonic()
        assert api.stop() == 0
        assert time.monotonic() - began < 5
        assert waiting.result(10).body["state"] == "queued"


def test_many_waiters_ask_the_database_once_a_tick(api: Api, store: Store) -> None:
    path = f"/tasks/{api.submit()['id']}"
    threads = [
        threading.Thread(target=api.ask, args=("GET", path), kwargs={"headers": {"Prefer": "wait=2"}})
        for _ in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    sessions = store.query(
        "select count(*) as n from pg_stat_activity"
        " where application_name = 'deadsure api' and datname = current_database()"
    )
    assert int(str(sessions[0]["n"])) <= 4


def ids(page: Any) -> list[str]:
    return [task["id"] for task in page["tasks"]]


def test_a_list_is_newest_first_and_its_pages_meet(api: Api) -> None:
    made = [api.submit("plain", number)["id"] for number in range(7)]
    first = api.ask("GET", "/tasks?limit=3").body
    second = api.ask("GET", f"/tasks?limit=3&cursor={first['next']}").body
    api.submit("plain", "newer than the first page")
    third = api.ask("GET", f"/tasks?limit=3&cursor={second['next']}").body
    assert ids(first) + ids(second) + ids(third) == sorted(made, reverse=True)
    assert third["next"] is None
    assert first["tasks"][0]["payload"] == 6


def test_a_list_of_nothing_is_empty(api: Api) -> None:
    assert api.ask("GET", "/tasks").body == {"tasks": [], "next": None}


@pytest.mark.parametrize("state", ["queued", "running", "unknown", "succeeded", "failed", "canceled"])
def test_a_list_by_state_holds_that_state_alone(api: Api, store: Store, state: str) -> None:
    endings: dict[str, Any] = {"succeeded": Outcome("succeeded", "1"), "failed": Outcome("failed", reason="r")}
    made: dict[str, str] = {}
    for ending, outcome in endings.items():
        made[ending] = api.submit()["id"]
        worker, claimed = claim(store)
        worker.finish(claimed, outcome)
    made["unknown"] = api.submit()["id"]
    recover.recover_worker(store.connection, claim(store)[0].slot.id, ExitProof(signal="SIGKILL"))
    made["running"] = api.submit()["id"]
    claim(store)
    made["canceled"] = api.submit()["id"]
    api.ask("POST", f"/tasks/{made['canceled']}/cancel")
    made["queued"] = api.submit()["id"]
    assert api.ask("GET", f"/tasks?state={state}").body == {
        "tasks": [api.ask("GET", f"/tasks/{made[state]}").body],
        "next": None,
    }


def test_a_list_by_kind_and_queue_holds_those_alone(api: Api) -> None:
    wanted = api.submit("plain", 1, queue="q")["id"]
    api.submit("plain", 1)
    api.submit("failing", 1, queue="q")
    assert ids(api.ask("GET", "/tasks?kind=plain&queue=q").body) == [wanted]
    assert ids(api.ask("GET", "/tasks?kind=nobody.has.it").body) == []


def test_a_page_of_large_payloads_is_cut_short_and_goes_on(api: Api) -> None:
    import secrets

    made = [api.submit("plain", secrets.token_hex(400_000))["id"] for _ in range(8)]
    first = api.ask("GET", "/tasks?limit=8").body
    assert 1 <= len(first["tasks"]) < 8
    found, cursor = ids(first), first["next"]
    while cursor:
        page = api.ask("GET", f"/tasks?limit=8&cursor={cursor}").body
        found, cursor = found + ids(page), page["next"]
    assert found == sorted(made, reverse=True)


def test_a_rare_task_is_found_behind_many_others(api: Api, store: Store) -> None:
    rare = api.submit("failing", "rare")["id"]
    for _ in range(5):  # in pieces: a slow machine does not get through all of them within the statement's time
        store.query(
            "select count(deadsure.submit('plain', cast(cast(n as text) as jsonb))) from generate_series(1, 5000) n"
        )
    page = api.ask("GET", "/tasks?kind=failing").body
    while not page["tasks"]:
        page = api.ask("GET", f"/tasks?kind=failing&cursor={page['next']}").body
    assert ids(page) == [rare]


@pytest.mark.parametrize(
    "query",
    [
        "state=done",
        "limit=0",
        "limit=501",
        "limit=x",
        "limit=1.5",
        "cursor=x",
        "kind=a%00b",
        "kind=%ff",
        "status=queued",
        "limit=1&limit=2",
    ],
)
def test_a_wrong_query_is_refused_by_name(shared_api: Api, query: str) -> None:
    answer = shared_api.ask("GET", f"/tasks?{query}")
    assert answer.status == 422
    assert repr(query.partition("=")[0]) in answer.body["detail"]
