"""Settling unknown tasks over HTTP, with real workers that were really killed."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kit.pool import Answer, Pool
from kit.store import Store
from kit.wait import wait_until

NewPool = Callable[..., Pool]
EVIDENCE = {"state": "succeeded", "evidence": "bank statement 7"}


def _killed(pool: Pool, tmp_path: Path, kind: str = "pay.blind") -> str:
    """The id of an effect task whose worker was killed while the provider had done it."""
    task = pool.submit(kind, {"folder": str(tmp_path), "block": str(tmp_path / "go")})
    wait_until(lambda: _effects(tmp_path) == 1, "the provider has done it")
    victim = next(w["pid"] for w in pool.get("/workers").body["workers"] if w["task"] == task)
    os.kill(victim, signal.SIGKILL)
    (tmp_path / "go").touch()
    return task


def _effects(tmp_path: Path) -> int:
    effects = tmp_path / "effects"
    return len(effects.read_text().splitlines()) if effects.exists() else 0


def _etag(pool: Pool, task: str) -> str:
    return str(pool.get(f"/tasks/{task}").headers["ETag"])


def _resolve(pool: Pool, task: str, etag: str | None, body: dict[str, Any], **headers: str) -> Answer:
    sent = headers | ({"If-Match": etag} if etag is not None else {})
    return pool.post(f"/tasks/{task}/resolution", body, sent)


def test_a_task_that_happened_before_its_worker_was_killed_is_settled_by_the_provider(
    new_pool: NewPool, tmp_path: Path
) -> None:
    pool = new_pool().start()
    task = pool.wait_for(_killed(pool, tmp_path, "pay"), "succeeded")
    assert (task["attempts"], _effects(tmp_path)) == (1, 1)
    assert task["effect"]["receipt"]["key"] == task["effect"]["key"] == f"deadsure-{task['id']}"
    assert task["unknown"] is None
    told = [event["event"] for event in pool.get(f"/tasks/{task['id']}/events").body["events"]]
    assert told == ["recovered", "reconciled"]


def test_without_a_contract_it_stays_unknown_until_a_person_decides(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    task = _killed(pool, tmp_path)
    unknown = pool.wait_for(task, "unknown")["unknown"]
    assert (unknown["needs"], unknown["signal"], unknown["proof"]) == ("decision", "SIGKILL", "exit")
    refused = pool.post(f"/tasks/{task}/reconcile")
    assert (refused.status, refused.body["type"]) == (409, "urn:deadsure:problem:decision-needed")

    etag = _etag(pool, task)
    assert _resolve(pool, task, None, EVIDENCE).status == 428
    assert _resolve(pool, task, "*", EVIDENCE).status == 412  # it says nothing about what was seen
    assert _resolve(pool, task, etag.replace('"', '"0', 1), EVIDENCE).status == 412
    assert _resolve(pool, task, f'"1", {etag}', EVIDENCE).status == 412
    assert _resolve(pool, task, '"999"', EVIDENCE).status == 412
    assert _resolve(pool, task, etag, {"state": "succeeded"}).status == 422
    assert _resolve(pool, task, etag, {"state": "succeeded", "evidence": " "}).status == 422
    assert _resolve(pool, task, etag, {"state": "queued", "evidence": "again, please"}).status == 422
    assert _resolve(pool, task, etag, {**EVIDENCE, "state": "failed", "result": 1}).status == 422
    assert pool.task(task)["state"] == "unknown"

    done = _resolve(pool, task, etag, {**EVIDENCE, "result": {"line": 12}}, **{"Deadsure-Actor": "alice"})
    assert done.status == 200, done.body
    assert (done.status, done.body["state"], done.body["result"]) == (200, "succeeded", {"line": 12})
    assert _resolve(pool, task, etag, EVIDENCE).status == 412
    assert _resolve(pool, task, _etag(pool, task), EVIDENCE).status == 409
    told = pool.get(f"/tasks/{task}/events").body["events"][-1]
    assert (told["event"], told["detail"]["actor"]) == ("resolved", "loopback (claimed: alice)")
    assert told["detail"]["evidence"] == "bank statement 7"
    assert _effects(tmp_path) == 1


def test_of_two_people_who_decide_at_once_one_gets_200_and_the_other_412(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    pool = new_pool().start()
    task = _killed(pool, tmp_path)
    pool.wait_for(task, "unknown")
    etag = _etag(pool, task)
    decisions = [{"state": state, "evidence": "seen"} for state in ("succeeded", "failed", "canceled", "failed")]
    with ThreadPoolExecutor(4) as people:
        answers = list(people.map(lambda body: _resolve(pool, task, etag, body).status, decisions))
    assert sorted(answers) == [200, 412, 412, 412]
    assert len(store.query("select 1 as one from deadsure.decisions")) == 1


def test_a_task_that_is_not_unknown_has_nothing_to_look_up_or_to_decide(new_pool: NewPool) -> None:
    pool = new_pool().start()
    task = pool.submit("words", {"text": "a"})
    pool.wait_for(task, "succeeded")
    assert pool.post(f"/tasks/{task}/reconcile").status == 409
    assert _resolve(pool, task, _etag(pool, task), EVIDENCE).status == 409
    missing = "01936f5e-8c5b-7d3e-9a51-6f0c2f1d7a10"
    assert pool.post(f"/tasks/{missing}/reconcile").status == 404
    assert _resolve(pool, missing, '"1"', EVIDENCE).status == 404


def test_a_plain_task_that_raises_is_tried_again_within_its_budget(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool().start()
    log = tmp_path / "log"
    task = pool.submit("flaky", {"log": str(log), "fail": 2})
    assert pool.wait_for(task, "succeeded")["attempts"] == 3
    assert len(log.read_text().splitlines()) == 3
    other = pool.wait_for(pool.submit("flaky", {"log": str(log), "fail": 9}), "failed")
    assert (other["attempts"], other["failure_reason"]) == (3, "RuntimeError: attempt 3")


def test_the_document_describes_the_new_calls(new_pool: NewPool) -> None:
    pool = new_pool().start()
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.port}/openapi.json") as answer:
        document = json.load(answer)
    assert "post" in document["paths"]["/tasks/{id}/resolution"]
    assert "post" in document["paths"]["/tasks/{id}/reconcile"]


def test_a_backlog_does_not_keep_lookups_away(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    pool = new_pool().start()
    task = _killed(pool, tmp_path, "pay")
    backlog = [pool.submit("note", {"seconds": 0.3}, priority=-1) for _ in range(40)]
    pool.wait_for(task, "succeeded", deadline=30)
    waiting = [id for id in backlog if pool.task(id)["state"] == "queued"]
    assert waiting, "it was settled only after the backlog"
