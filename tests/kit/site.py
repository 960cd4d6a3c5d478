"""A pool on a primary and its standby, with a ledger and with clients that never stop: to be failed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deadsure.drills.ledger_process import LedgerProcess
from deadsure.runtime import db

from . import cluster, reckoning, traffic
from .cluster import Pair
from .pool import Pool
from .scale import count
from .traffic import Traffic
from .wait import wait_until

#: Seconds within which all works again once there is a primary; twice that in CI, beside other tests.
SOON = float(count(long=10, ci=20))
QUICK = {"POOL_RENEW_EVERY": "0.5", "POOL_POLL_INTERVAL": "0.2"}


@dataclass
class Site:
    """The demo application's pool with both servers in its DSN. `gaps`: seconds from each kill to all working."""

    pair: Pair
    ledger: LedgerProcess
    settings: db.Settings
    pool: Pool
    traffic: Traffic
    gaps: list[float] = field(default_factory=list)

    @property
    def now(self) -> db.Settings:
        """How to ask the server that is the primary now."""
        return cluster.only(self.settings, self.pair.primary)

    def fail_over(self) -> None:
        """Kill the primary, look at what is said while there is none, promote the standby, and see all work again."""
        known = next(iter(self.traffic.acknowledged))
        self.pair.primary.kill()
        killed = time.monotonic()
        wait_until(lambda: self.traffic.since(killed, "GET").total() >= 3, "somebody reads")
        assert {self.pool.get(path).status for path in (f"/tasks/{known}", "/tasks", "/readyz")} == {503}
        assert set(self.traffic.since(killed, "GET")) == {503}, "state was read although there is no primary"
        assert self.pool.get("/livez").status == 200
        self.pair.promote()
        self.works_again(time.monotonic())
        self.gaps.append(time.monotonic() - killed)

    def works_again(self, since: float) -> None:
        """Within SOON of that moment: the writer, the claims, the recovery and the lease."""
        left = since + SOON - time.monotonic()
        said = f"submits are accepted: {self.pool.log[-2000:]}"
        wait_until(lambda: self.traffic.since(since, "POST")[202], said, left)
        wait_until(self.pool.is_ready, "the pool is ready", left)
        self.pool.wait_for(self._submit("noop"), "succeeded", deadline=left)
        until_renewed(self.now)

    def _submit(self, kind: str) -> str:
        def accepted() -> str | None:
            answer = self.pool.post("/tasks", {"kind": kind, "payload": {}})
            self.traffic.doubtful.update([answer.body["task_id"]] if "task_id" in answer.body else [])
            return str(answer.body["id"]) if answer.status == 202 else None

        id = wait_until(accepted, "it is accepted", SOON)
        assert id is not None
        self.traffic.acknowledged[id] = kind
        return id


@contextmanager
def site(pair: Pair, folder: Path) -> Iterator[Site]:
    """A site whose pool is ready."""
    both = cluster.on_both(cluster.with_schema(pair.primary), pair)
    with LedgerProcess(folder / "book") as ledger:
        environment = {"DEADSURE_LEDGER_URL": ledger.url}
        with cluster.pool(
            both, app="deadsure.drills.demo:app", workers=4, options=QUICK, environment=environment
        ) as pool:
            yield Site(pair, ledger, both, pool.start(), Traffic(pool.port, traffic.demo_task))


def until_renewed(settings: db.Settings) -> None:
    """Wait for the next renewal of a lease."""
    with reckoning.asking(settings) as ask:
        lease = ask("select max(lease_until) from deadsure.incarnations")[0][0]
        renewed = "select 1 from deadsure.incarnations where lease_until > :lease and ended_at is null"
        wait_until(lambda: ask(renewed, lease=lease), "the lease is renewed", SOON)
