"""Several hosts on one database: cut off from it, and with clocks that disagree."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from deadsure.runtime import db
from kit.fault_proxy import FaultProxy
from kit.pool import Pool, alive
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.kills
NewPool = Callable[..., Pool]
LEASE = 4.0
OPTIONS = {"POOL_LEASE": str(LEASE), "POOL_RENEW_EVERY": "0.5", "POOL_POLL_INTERVAL": "0.2"}


@dataclass
class Namespace:
    """A network namespace with one address of its own, joined to this one by a veth pair."""

    name: str
    number: int

    @property
    def ours(self) -> str:
        return f"10.213.{self.number}.1"

    def make(self) -> None:
        outside, inside = f"ds{self.number}o{os.getpid() % 1000}", f"ds{self.number}i{os.getpid() % 1000}"
        _ip("netns", "add", self.name)
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", self.name)
        _ip("addr", "add", f"{self.ours}/24", "dev", outside)
        _ip("link", "set", outside, "up")
        _ip("-n", self.name, "addr", "add", f"10.213.{self.number}.2/24", "dev", inside)
        _ip("-n", self.name, "link", "set", inside, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.inside = inside

    def cut(self) -> None:
        """Nothing passes any more, in either direction, without a word to anybody."""
        _ip("-n", self.name, "link", "set", self.inside, "down")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[Namespace]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    made = [Namespace(f"deadsure-{os.getpid()}-{n}", n) for n in (1, 2)]
    try:
        for host in made:
            host.make()
        yield made
    finally:
        for host in made:
            host.remove()


def test_a_host_cut_off_from_the_database_stops_before_its_lease_ends_and_another_settles_its_tasks(
    new_pool: NewPool, store: Store, hosts: list[Namespace], tmp_path: Path
) -> None:
    proxies = [FaultProxy(store.settings.dsn.hosts[0], host.ours) for host in hosts]
    pools = [_pool_in(host, new_pool, proxy, store.settings) for host, proxy in zip(hosts, proxies, strict=True)]
    log = tmp_path / "log"
    wait_until(lambda: _workers(store) == 2, "both have a worker")
    task = str(store.submit("block.fail", f'{{"go": "{tmp_path / "never"}", "log": "{log}"}}'))
    wait_until(lambda: store.row(UUID(task))["state"] == "running", "it runs")
    cut = next(n for n in (0, 1) if _holds(store, pools[n]))
    worker = int(wait_until(lambda: log.exists() and log.read_text().split(), "its handler has begun")[3])
    until = store.query("select max(lease_until) as t from deadsure.incarnations where pid = :p", p=pools[cut].pid)
    hosts[cut].cut()
    wait_until(lambda: not alive(worker), "its worker is dead", LEASE + 3)
    left = store.query(
        "select max(lease_until) - clock_timestamp() > interval '0' as valid, max(lease_until) >= :t as same"
        " from deadsure.incarnations where pid = :p",
        p=pools[cut].pid, t=until[0]["t"],  # type: ignore[arg-type]
    )  # fmt: skip
    assert left[0]["valid"], "it died only after the lease had ended"
    row = wait_until(lambda: _settled(store, task), "another host settles it", LEASE + 10)
    assert row["failure_reason"] == "lease expired before worker completion"
    for proxy in proxies:
        proxy.close()


def _pool_in(host: Namespace, new_pool: NewPool, proxy: FaultProxy, settings: db.Settings) -> Pool:
    dsn = f"postgresql://{settings.dsn.user}@{host.ours}:{proxy.port}/{settings.dsn.database}"
    pool = new_pool(options={**OPTIONS, "DATABASE_DSN": dsn})
    pool.prefix = ["ip", "netns", "exec", host.name]
    pool.start(ready=False)
    wait_until(lambda: "recovered previous pool" in pool.log, f"it has started: {pool.log}")
    return pool


def _holds(store: Store, pool: Pool) -> bool:
    return bool(
        store.query(
            "select 1 as one from deadsure.slots s join deadsure.incarnations i using (incarnation)"
            " where i.pid = :p and cardinality(s.task_ids) > 0",
            p=pool.pid,
        )
    )


def _workers(store: Store) -> int:
    """How many workers have registered, and with them their kinds."""
    return len(store.query("select 1 as one from deadsure.slots where not ended"))


def _settled(store: Store, task: str) -> dict[str, object] | None:
    row = store.row(UUID(task))
    return row if row["state"] == "failed" else None


@pytest.fixture
def faketime() -> Iterator[None]:
    """What libfaketime keeps in /dev/shm for a process that is then killed is removed."""
    before = set(Path("/dev/shm").glob("*faketime*"))
    yield
    for left in set(Path("/dev/shm").glob("*faketime*")) - before:
        left.unlink(missing_ok=True)


@pytest.mark.usefixtures("faketime")
@pytest.mark.parametrize("offsets", [("+10m", "-10m"), ("+1h", "-1h")])
def test_hosts_whose_clocks_disagree_take_no_living_lease(
    new_pool: NewPool, store: Store, tmp_path: Path, offsets: tuple[str, str]
) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    pools = []
    for offset in offsets:
        pool = new_pool(options={"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4"})
        pool.prefix = ["faketime", "-m", "-f", offset]
        pools.append(pool.start(ready=False))
    for pool in pools:
        wait_until(lambda pool=pool: "recovered previous pool" in pool.log, "it has started")  # type: ignore[misc]
    wait_until(lambda: _workers(store) == 2, "both have a worker")
    tasks = [store.submit("note", '{"seconds": 5}') for _ in range(2)]
    wait_until(lambda: all(store.row(task)["state"] == "succeeded" for task in tasks), "both have run", 30)
    assert [store.row(task)["attempts"] for task in tasks] == [1, 1]
    assert store.query("select 1 as one from deadsure.events") == []
    assert store.query("select 1 as one from deadsure.incarnations where ended_by = 'lease'") == []


@pytest.mark.usefixtures("faketime")
def test_a_clock_that_is_stepped_by_an_hour_during_a_run_costs_no_lease(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        pytest.skip("faketime is not installed")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    stepped = new_pool(options={"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4"})
    stepped.environment = {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    stepped.start(ready=False)
    other = new_pool(options={"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4"}).start()
    wait_until(stepped.is_ready, "both pools are ready", 30)
    tasks = [store.submit("block.unknown", f'{{"go": "{tmp_path / "go"}"}}') for _ in range(2)]
    wait_until(lambda: all(store.row(task)["state"] == "running" for task in tasks), "both run")
    for step in ("-1h", "+1h", "-1h"):
        clock.write_text(step)
        before = _renewed(store, stepped.pid)
        wait_until(lambda before=before: _renewed(store, stepped.pid) > before, "it renews")  # type: ignore[misc]
    (tmp_path / "go").touch()
    wait_until(lambda: all(store.row(task)["state"] == "succeeded" for task in tasks), "both have run", 30)
    assert [store.row(task)["attempts"] for task in tasks] == [1, 1]
    assert store.query("select 1 as one from deadsure.incarnations where ended_by = 'lease'") == []
    assert other.get("/readyz").status == 200


def _renewed(store: Store, pid: int) -> Any:
    found = store.query("select max(lease_until) as t from deadsure.incarnations where pid = :p", p=pid)
    return found[0]["t"]
