"""The shipped unit under a real systemd: what starts, kills, watches and stops it is what does so in production."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
from deadsure.cli import config
from deadsure.cli.config import Config
from deadsure.cli.config import Pool as PoolConfig
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.errors import StoreError
from kit import systemd
from kit.pool import Pool, alive
from kit.postgres import admin
from kit.scale import count
from kit.systemd import System, Unit
from kit.wait import wait_until

pytestmark = pytest.mark.kills
PASSWORD = "correct horse"
#: Seconds from the supervisor's SIGKILL until its successor runs tasks; in CI others use the machine as well.
SOON = 2.0 if os.environ.get("DEADSURE_LONG") == "1" else 10.0
LONG = {"seconds": 120}


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    if lacking := systemd.why_not():
        pytest.skip(lacking)
    with systemd.booted() as booted:
        yield booted


class Service:
    """A pool under systemd, asked over HTTP as any other."""

    def __init__(self, unit: Unit, api: Pool) -> None:
        self.unit = unit
        self.api = api

    def is_ready(self) -> bool:
        return self.api.get("/readyz").status == 200

    def running_task(self) -> str:
        """A task that is inside its handler, and will be for two minutes."""
        task = self.api.submit("sleep", LONG)
        self.api.wait_for(task, "running")
        wait_until(lambda: task in str(self.api.get("/workers").body), "its worker says so")
        return task

    def is_replaced_after(self, number: signal.Signals) -> float:
        """Seconds from this signal to the supervisor until none of the old processes lives and others are ready."""
        supervisor, old = self.unit.supervisor(), self.unit.processes()
        before = time.monotonic()
        os.kill(supervisor, number)
        wait_until(lambda: not any(alive(pid) for pid in old), "the old ones are dead")
        wait_until(self.is_ready, "it is ready again")
        took = time.monotonic() - before
        assert not self.unit.processes() & old
        return took


@pytest.fixture
def new_service(
    system: System, server: EmbeddedPostgres, database: db.Settings, tmp_path: Path
) -> Iterator[Callable[..., Service]]:
    """Makes pools under systemd, on the test's database, which they reach by TCP and with a password."""
    _demand_password(server, database)
    made: list[Unit] = []

    def make(drop_in: str = "", pool: str = "") -> Service:
        api = Pool(database, tmp_path)
        unit = Unit(system, f"p{api.port}")
        made.append(unit)
        unit.configure(
            f'app = "deadsure.drills.demo:app"\n[database]\ndsn = "{_tcp(server, database)}"\n'
            f'[http]\nbind = "127.0.0.1:{api.port}"\n[pool]\nworkers = 2\n{pool}\n',
            PASSWORD,
        )
        if drop_in:
            unit.drop_in(f"[Service]\n{drop_in}\n")
        return Service(unit, api)

    yield make
    for unit in made:
        unit.end()
        assert unit.processes() == set()


def _tcp(server: EmbeddedPostgres, database: db.Settings) -> str:
    return f"postgresql://deadsure@127.0.0.1:{server.port}/{database.dsn.database}"


def _demand_password(server: EmbeddedPostgres, database: db.Settings) -> None:
    """From now on whoever comes to this database by TCP must know the password."""
    with admin(server) as session:
        session.run(f"alter role deadsure password '{PASSWORD}'")
        rules = Path(session.run("show hba_file")[0][0])
        rules.write_text(f"host {database.dsn.database} all 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        session.run("select pg_reload_conf()")

    def refused() -> bool:
        try:
            db.connect(db.Settings(dsn.parse(_tcp(server, database))), "test").close()
        except StoreError:
            return True
        return False

    wait_until(refused, "without the password nobody comes in")


# --- the file


def test_systemd_finds_no_mistake_in_the_unit(system: System) -> None:
    verified = system.run("systemd-analyze", "verify", "/etc/systemd/system/deadsure@.service")
    assert (verified.stdout, verified.stderr, verified.returncode) == ("", "", 0)


def test_what_the_unit_may_do_is_little(system: System) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", str(systemd.UNIT)]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert judged.stderr == ""


def test_the_units_patience_is_what_the_program_is_told() -> None:
    text = systemd.UNIT.read_text()
    [patience] = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert re.findall(r"^Environment=DEADSURE_POOL_STOP_TIMEOUT=(\d+)$", text, re.MULTILINE) == [patience]
    config.check(Config(pool=PoolConfig(stop_timeout=float(patience))))


def test_the_watchdog_is_faster_than_the_lease() -> None:
    [limit] = re.findall(r"^WatchdogSec=(\d+)$", systemd.UNIT.read_text(), re.MULTILINE)
    assert float(limit) < PoolConfig().lease - PoolConfig().renew_every


# --- start and stop


def test_the_unit_is_ready_when_a_worker_is(new_service: Callable[..., Service]) -> None:
    service = new_service()
    service.unit.start()
    assert service.is_ready()
    assert service.unit.show("ActiveState") == "active"
    done = service.api.wait_for(service.api.submit("text.analyze", {"text": "a b"}), "succeeded")
    assert done["result"] == {"words": 2, "bytes": 3, "runes": 3}
    for pid in service.unit.processes():
        status = Path(f"/proc/{pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert "Uid:\t0\t" not in status
        assert PASSWORD.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert PASSWORD.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_reload_replaces_the_children_and_not_the_supervisor(new_service: Callable[..., Service]) -> None:
    service = new_service()
    service.unit.start()
    supervisor = service.unit.supervisor()
    children = service.unit.processes() - {supervisor}
    assert service.unit.systemctl("reload").returncode == 0
    wait_until(lambda: not service.unit.processes() & children, "all children are others")
    wait_until(service.is_ready, "and it is ready")
    assert service.unit.supervisor() == supervisor


def test_a_stop_during_a_long_task_ends_in_time_and_with_the_task_settled(
    new_service: Callable[..., Service],
) -> None:
    service = new_service("TimeoutStopSec=20\nEnvironment=DEADSURE_POOL_STOP_TIMEOUT=20", pool="drain_timeout = 0.5")
    service.unit.start()
    task = service.running_task()
    before = time.monotonic()
    service.unit.systemctl("stop")
    took = time.monotonic() - before
    print(f"stopped in {took:.2f} s")
    assert took < 20
    assert (service.unit.show("Result"), service.unit.show("ExecMainStatus")) == ("success", "0")
    assert "with signal SIGKILL" not in service.unit.log
    assert service.unit.processes() == set()
    service.unit.start()
    found = service.api.task(task)
    assert (found["state"], found["unknown"]["cause"], found["unknown"]["proof"]) == ("unknown", "shutdown", "exit")
    assert "recovered previous pool: failed=0 unknown=0 queued=0" in service.unit.log


def test_a_drain_that_does_not_fit_is_refused_at_the_start_and_not_tried_again(
    new_service: Callable[..., Service],
) -> None:
    service = new_service("RestartSec=0", pool="drain_timeout = 50")
    assert service.unit.systemctl("start").returncode != 0
    assert service.unit.show("ExecMainStatus") == "78"
    assert service.unit.show("NRestarts") == "0"
    assert "pool.stop_timeout (60 s) is too short for pool.drain_timeout (50 s)" in service.unit.log


# --- kills


def test_a_killed_supervisor_is_replaced_and_what_it_ran_is_settled(new_service: Callable[..., Service]) -> None:
    service = new_service()
    service.unit.start()
    times = []
    for _ in range(count(long=20, ci=5)):
        task = service.running_task()
        times.append(service.is_replaced_after(signal.SIGKILL))
        found = service.api.task(task)
        assert (found["state"], found["unknown"]["proof"]) == ("unknown", "pool_lock")
    print(f"{len(times)} restarts, from kill to ready: median {median(times):.2f} s, slowest {max(times):.2f} s")
    assert max(times) < SOON


def test_a_supervisor_that_stands_still_is_replaced_by_the_watchdog(new_service: Callable[..., Service]) -> None:
    service = new_service("WatchdogSec=1")
    service.unit.start()
    task = service.running_task()
    service.is_replaced_after(signal.SIGSTOP)
    found = service.api.task(task)
    assert (found["state"], found["unknown"]["proof"]) == ("unknown", "pool_lock")
    assert "Watchdog timeout" in service.unit.log
