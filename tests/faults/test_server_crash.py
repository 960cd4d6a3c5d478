"""PostgreSQL crashes and comes back: nothing acknowledged is lost, nothing is doubled, nobody has to be restarted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.drills.ledger_process import LedgerProcess
from deadsure.runtime import db
from kit import cluster, reckoning, traffic
from kit.pool import Pool, alive
from kit.scale import count
from kit.site import QUICK, SOON
from kit.traffic import Traffic
from kit.wait import wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with cluster.running() as running:
        yield running


@pytest.fixture
def settings(server: EmbeddedPostgres) -> db.Settings:
    return cluster.with_schema(server)


@dataclass
class Crashes:
    """A pool under traffic, whose server is brought down and up again and again."""

    server: EmbeddedPostgres
    settings: db.Settings
    pool: Pool
    traffic: Traffic
    outages: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def cycle(self, number: int) -> None:
        """One crash. A worker dies in the outage, and a task becomes due in it."""
        held = self._submit("sleep", {"seconds": 600})
        self.pool.wait_for(held, "running")
        later = self._submit("noop", {}, run_at=_in(1.0))
        victim = next(w["pid"] for w in self.pool.get("/workers").body["workers"] if w["task"] == held)
        began = time.monotonic()
        if number % 2:
            self.server.kill()
        else:
            self.server.stop("immediate")
        os.kill(victim, signal.SIGKILL)
        self._unavailable(held)
        self.server.start()
        self.outages.append(time.monotonic() - began)
        self._works(held, later)

    def _unavailable(self, id: str) -> None:
        """Everybody is told so, while it lasts."""
        wait_until(lambda: self.pool.get(f"/tasks/{id}").status == 503, "reads say 503")
        began = time.monotonic()
        wait_until(lambda: set(self.traffic.since(began, "POST")) == {503}, "submits too")

    def _works(self, held: str, later: str) -> None:
        """Every loop does its work again within SOON: writer, reads, claims, promotion, recovery and lease."""
        began = time.monotonic()
        with reckoning.asking(self.settings) as ask:
            lease = ask("select max(lease_until) from deadsure.incarnations")[0][0]
            renewed = "select 1 from deadsure.incarnations where lease_until > :lease and ended_at is null"
            facts = {
                "a submit is accepted": lambda: self.traffic.since(began, "POST")[202],
                "the scheduled task has run": lambda: self._state(later) == "succeeded",
                "the dead worker's task is settled": lambda: self._state(held) == "unknown",
                "the lease is renewed": lambda: ask(renewed, lease=lease),
                "the pool is ready": self.pool.is_ready,
            }
            for what, fact in facts.items():
                wait_until(fact, f"{what}: {self.pool.log[-3000:]}", max(0.1, began + SOON - time.monotonic()))
        self.recoveries.append(time.monotonic() - began)
        unknown = self.pool.task(held)["unknown"]
        assert (unknown["cause"], unknown["proof"], unknown["signal"]) == ("worker_died", "exit", "SIGKILL")

    def _state(self, id: str) -> str:
        answer = self.pool.get(f"/tasks/{id}")
        return str(answer.body["state"]) if answer.status == 200 else f"{answer.status}"

    def _submit(self, kind: str, payload: object, **fields: object) -> str:
        id = self.pool.submit(kind, payload, **fields)
        self.traffic.acknowledged[id] = kind
        return id


def test_crashes_under_load_lose_nothing_and_need_no_restart(
    server: EmbeddedPostgres, settings: db.Settings, tmp_path: Path
) -> None:
    cycles = count(long=30, ci=5)
    with (
        LedgerProcess(tmp_path / "book") as ledger,
        cluster.pool(
            settings,
            app="deadsure.drills.demo:app",
            workers=4,
            options=QUICK,
            environment={"DEADSURE_LEDGER_URL": ledger.url},
        ) as pool,
    ):
        pool.start()
        api = _apis(pool)
        clients = Traffic(pool.port, traffic.demo_task)
        crashes = Crashes(server, settings, pool, clients)
        with clients.flowing():
            for number in range(cycles):
                crashes.cycle(number)
        clients.check()
        reckoning.settled(settings)
        states = reckoning.check(settings, clients)
        effects = reckoning.check_effects(settings, ledger.history)
        assert states == {"unknown": cycles, "succeeded": len(clients.acknowledged) - cycles}
        assert _apis(pool) == api, "an api child was restarted"
        assert sum(w["exits"] for w in pool.get("/workers").body["workers"]) == cycles, "another worker ended"
        assert pool.stop() == 0
        print(
            f"{cycles} crashes, {len(clients.acknowledged)} tasks, {effects} effects,"
            f" POST {dict(clients.statuses('POST'))}, slowest {clients.slowest('POST'):.1f} s,"
            f" all works again after at most {max(crashes.recoveries):.1f} s"
        )


def test_a_crash_while_the_pool_is_idle_is_not_noticed_afterwards(
    server: EmbeddedPostgres, settings: db.Settings
) -> None:
    with cluster.pool(settings, workers=2, options=QUICK) as pool:
        pool.start()
        before = pool.worker_pids()
        server.stop("immediate")
        wait_until(lambda: "the database does not answer" in pool.log, "the supervisor notices")
        assert pool.get("/livez").status == 200
        server.start()
        wait_until(pool.is_ready, "it is ready", SOON)
        assert pool.wait_for(pool.submit("words", {"text": "a"}), "succeeded", deadline=SOON)["attempts"] == 1
        assert pool.worker_pids() == before


def test_after_an_outage_longer_than_the_lease_what_ran_ends_by_its_on_death(
    server: EmbeddedPostgres, settings: db.Settings, tmp_path: Path
) -> None:
    options = QUICK | {"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4"}
    with cluster.pool(settings, workers=3, options=options) as pool:
        pool.start()
        kinds = ("block.unknown", "block.fail", "block.requeue")
        tasks = [pool.submit(kind, {"go": str(tmp_path / "go")}) for kind in kinds]
        for task in tasks:
            pool.wait_for(task, "running")
        before = pool.worker_pids()
        server.stop("immediate")
        wait_until(lambda: not any(alive(pid) for pid in before), "the workers are killed before the lease ends", 4)
        assert pool.get("/livez").status == 200
        time.sleep(0.5)  # past the lease: others may have swept by now
        server.start()
        (tmp_path / "go").touch()
        ended = [
            pool.wait_for(task, state, deadline=SOON + 5)
            for task, state in zip(tasks, ("unknown", "failed", "succeeded"), strict=True)
        ]
        assert (ended[0]["unknown"]["cause"], ended[0]["unknown"]["proof"]) == ("lease_expired", "exit")
        assert ended[1]["failure_reason"] == "process exited before worker completion (SIGKILL)"
        assert ended[2]["attempts"] == 2
        wait_until(pool.is_ready, "it is ready again", SOON)
        assert pool.stop() == 0


def test_a_server_that_hangs_is_unavailable_and_nobody_hangs_with_it(
    server: EmbeddedPostgres, settings: db.Settings, tmp_path: Path
) -> None:
    with cluster.pool(settings, workers=2, options=QUICK) as pool:
        pool.start()
        log = tmp_path / "log"
        running = pool.submit("note", {"seconds": 1, "log": str(log)})
        pool.wait_for(running, "running")
        clients = Traffic(pool.port, lambda number: ("words", {"text": str(number)}))
        with clients.flowing():
            wait_until(lambda: clients.statuses("POST")[202], "it is flowing")
            cluster.freeze(server)
            wait_until(lambda: clients.statuses("POST")[503] >= 8, "submits are unavailable")
            wait_until(lambda: "the lease was not renewed" in pool.log, "the supervisor notices")
            began = time.monotonic()
            cluster.thaw(server)
            wait_until(lambda: clients.since(began, "POST")[202], "submits are accepted again", SOON)
            pool.wait_for(running, "succeeded", deadline=SOON)
        clients.check()
        reckoning.settled(settings)
        clients.acknowledged[running] = "note"
        assert set(reckoning.check(settings, clients)) == {"succeeded"}
        assert [line.split()[0] for line in log.read_text().splitlines()] == ["start", "end"]
        wait_until(pool.is_ready, "ready", SOON)


def _apis(pool: Pool) -> set[int]:
    return set(pool.children()) - set(pool.worker_pids())


def _in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
