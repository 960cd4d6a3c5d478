"""Connections that fall silent, without a word in either direction: everybody gives them up in time and goes on.

The proxy still acknowledges what it is sent, so that neither keepalive nor TCP_USER_TIMEOUT can help: what is shown is
the deadlines of our own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kit.aftermath import entered, per_task
from kit.fault_proxy import FaultProxy
from kit.fault_rules import Fault
from kit.pool import Answer, Pool, dsn_text
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.faults
#: Seconds: what the silence may last before it is noticed and got over; and what a busy machine may add.
PATIENCE = 5.0
SLACK = 3.0
BUDGET = 2.0
IDLE = count(long=30, ci=1)


@dataclass
class Scene:
    """A pool behind the proxy, with all its connections open, one worker in a handler, and idle for a while."""

    pool: Pool
    store: Store
    proxy: FaultProxy
    log: Path
    go: Path
    held: str
    workers: list[int]

    def lease(self) -> Any:
        found = "select max(lease_until) as t, count(*) as n from deadsure.incarnations where pid = :pid"
        return self.store.query(found, pid=self.pool.pid)[0]

    def exits(self) -> list[int]:
        return [worker["exits"] for worker in self.pool.get("/workers").body["workers"]]


@pytest.fixture
def scene(new_pool: Callable[..., Pool], store: Store, proxy: FaultProxy, tmp_path: Path) -> Scene:
    options = {
        "POOL_LEASE": "15", "POOL_RENEW_EVERY": "0.5", "POOL_POLL_INTERVAL": "0.5",
        "DATABASE_DSN": dsn_text(proxy.through(store.settings)),
    }  # fmt: skip
    pool = new_pool(workers=2, options=options).start()
    log, go = tmp_path / "log", tmp_path / "go"
    held = pool.submit("block.unknown", {"log": str(log), "go": str(go)})
    pool.wait_for(held, "running")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: pool.get(f"/tasks/{held}"), range(24)))
    wait_until(lambda: len(pool.worker_pids()) == 2, "two workers")
    time.sleep(IDLE)
    return Scene(pool, store, proxy, log, go, held, sorted(pool.worker_pids()))


def _timed(ask: Callable[[], Answer]) -> tuple[float, Answer]:
    began = time.monotonic()
    answer = ask()
    return time.monotonic() - began, answer


def _direct(scene: Scene) -> UUID:
    """A task that is submitted beside the proxy, so that only its claim has to get over the silence."""
    return scene.store.submit("count.fail", f'{{"log": "{scene.log}"}}')


def test_established_connections_that_fall_silent_are_given_up_in_time(scene: Scene) -> None:
    pool, proxy, store = scene.pool, scene.proxy, scene.store
    before = scene.lease()
    silent = proxy.blackhole()
    began = time.monotonic()
    task = _direct(scene)
    scene.go.touch()
    body = {"kind": "count.fail", "payload": {}}
    asks: list[Callable[[], Answer]] = [
        lambda: pool.post("/tasks", body),
        lambda: pool.get(f"/tasks/{scene.held}"),
        lambda: pool.get("/tasks"),
        lambda: pool.post(f"/tasks/{scene.held}/cancel"),
    ]
    with ThreadPoolExecutor(len(asks)) as threads:
        answers = list(threads.map(_timed, asks))
    for took, answer in answers:
        assert took < BUDGET + SLACK, answer
        assert answer.status in (200, 202, 503), answer
    assert any(answer.status == 503 for _, answer in answers)

    def since(fact: Callable[[], object], what: str) -> float:
        wait_until(fact, what, max(0.1, began + PATIENCE + SLACK - time.monotonic()))
        return round(time.monotonic() - began, 1)

    took = {
        "lease": since(lambda: scene.lease()["t"] > before["t"], "the lease is renewed on a new connection"),
        "claim": since(lambda: store.row(task)["state"] == "succeeded", "a worker claims on a new connection"),
        "finish": since(lambda: store.row(UUID(scene.held))["state"] != "running", "what was in hand is finished"),
        "post": since(lambda: pool.post("/tasks", body).status == 202, "a POST is accepted"),
        "get": since(lambda: pool.get(f"/tasks/{task}").status == 200, "a GET is answered"),
    }
    said = [(round(t, 1), answer.status) for t, answer in answers]
    print(f"{silent} silent connections, idle for {IDLE} s; seconds until {took}; requests {said}")

    def given_up() -> bool:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: pool.get(f"/tasks/{task}"), range(8)))
        return proxy.silent_and_kept() == 0

    wait_until(given_up, "every silent connection that is used is given up", 20)
    assert scene.lease()["n"] == before["n"]
    assert (scene.exits(), sorted(pool.worker_pids())) == ([0, 0], scene.workers)
    assert set(per_task(entered(scene.log)).values()) == {1}


def test_a_database_that_is_silent_for_a_while_kills_nobody_and_is_found_again(scene: Scene) -> None:
    pool, proxy, store = scene.pool, scene.proxy, scene.store
    before = scene.lease()
    proxy.blackhole(new="silent")
    until = time.monotonic() + count(long=9, ci=4)
    body = {"kind": "count.fail", "payload": {}}
    while time.monotonic() < until:
        for took, answer in (_timed(lambda: pool.post("/tasks", body)), _timed(lambda: pool.get("/tasks"))):
            assert (took < BUDGET + SLACK, answer.status) == (True, 503), (took, answer)
        took, answer = _timed(lambda: pool.get("/livez"))
        assert (took < SLACK, answer.status) == (True, 200)
    task = _direct(scene)
    scene.go.touch()
    proxy.no_more_faults()
    healed = time.monotonic()
    wait_until(lambda: scene.lease()["t"] > before["t"], "the lease is renewed", PATIENCE + SLACK)
    wait_until(lambda: store.row(task)["state"] == "succeeded", "a worker claims", PATIENCE + SLACK)
    wait_until(lambda: pool.post("/tasks", body).status == 202, "a POST is accepted", PATIENCE + SLACK)
    assert pool.wait_for(scene.held, "succeeded")["attempts"] == 1
    print(f"found again after {time.monotonic() - healed:.1f} s")
    assert (scene.exits(), sorted(pool.worker_pids())) == ([0, 0], scene.workers)
    assert scene.lease()["n"] == before["n"]
    assert set(per_task(entered(scene.log)).values()) == {1}


def test_a_recovery_that_falls_silent_half_way_is_repeated_in_time(scene: Scene) -> None:
    scene.proxy.add("settle", Fault.DROPPED, application="deadsure supervisor", cut="silent", times=1)
    victim = next(w["pid"] for w in scene.pool.get("/workers").body["workers"] if w["task"] == scene.held)
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    task = scene.pool.wait_for(scene.held, "unknown")
    print(f"settled after {time.monotonic() - began:.1f} s")
    assert task["unknown"]["proof"] == "exit"
    assert time.monotonic() - began < PATIENCE + SLACK
