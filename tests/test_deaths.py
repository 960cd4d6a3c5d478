"""Deaths that are not settled yet: kept with their proof until the recovery is committed, and collected after it."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from deadsure.runtime import db, dsn
from deadsure.supervisor import descendants, recovery
from deadsure.supervisor.child import Child
from deadsure.supervisor.link import Link
from deadsure.supervisor.recovery import Death, Recovery
from deadsure.supervisor.resolver import Resolver
from kit.postgres import free_port
from kit.store import Store


@pytest.fixture
def dead() -> Iterator[Child]:
    """A child that has ended and was not collected."""
    process = subprocess.Popen(["true"], process_group=0)
    child = Child(process.pid, os.pidfd_open(process.pid), -1)
    select.select([child.pidfd], [], [], 20)
    yield child
    process.wait()


@pytest.fixture(autouse=True)
def left_behind(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many the dead left behind that still live. Ours are the tests' own processes, so nobody is killed."""
    left = [0]
    monkeypatch.setattr(descendants, "kill_strangers", lambda known: left[0])
    return left


@pytest.fixture
def link(store: Store) -> Iterator[Link]:
    """The supervisor's connection."""
    made = _link(store.settings)
    yield made
    made.close()


def _link(settings: db.Settings) -> Link:
    return Link(settings, "deaths", Resolver(settings.dsn))


def _noted(deaths: Recovery, child: Child, slot: UUID) -> Death:
    exit = child.exit()
    assert exit is not None
    death = Death(child, slot, exit, None)
    deaths.add(death)
    return death


def _is_zombie(child: Child) -> bool:
    return child.exit() is not None


def test_a_death_is_kept_and_not_collected_until_its_recovery_is_committed(
    store: Store, link: Link, dead: Child
) -> None:
    nowhere = db.Settings(dsn.parse(f"postgresql://deadsure@127.0.0.1:{free_port()}/deadsure"))
    deaths = Recovery()
    _noted(deaths, dead, store.worker().slot.id)
    deaths.settle(_link(nowhere), set())
    assert (len(deaths), deaths.pids, dead.collected) == (1, {dead.pid}, False)
    assert _is_zombie(dead)
    time.sleep(recovery.PAUSE)
    deaths.settle(link, set())
    assert (len(deaths), dead.collected) == (0, True)


def test_nothing_is_settled_while_something_that_was_left_behind_lives(
    store: Store, link: Link, dead: Child, left_behind: list[int]
) -> None:
    task, worker = store.submit("failing"), store.worker()
    worker.claim()
    deaths = Recovery()
    _noted(deaths, dead, worker.slot.id)
    left_behind[0] = 1
    deaths.settle(link, set())
    assert (len(deaths), store.row(task)["state"]) == (1, "running")
    left_behind[0] = 0
    deaths.settle(link, set())
    assert (len(deaths), store.row(task)["state"]) == (0, "failed")


def test_what_will_not_die_in_time_is_said_in_the_proof(
    store: Store, link: Link, dead: Child, left_behind: list[int]
) -> None:
    task, worker = store.submit(), store.worker()
    worker.claim()
    deaths = Recovery()
    _noted(deaths, dead, worker.slot.id).noticed -= recovery.PATIENCE
    left_behind[0] = 1
    deaths.settle(link, set())
    row = store.row(task)
    assert (row["state"], row["unknown_proof"], row["sender_gone_at"]) == ("unknown", "exit", None)


def test_the_proof_of_an_exit_says_since_when_nothing_can_be_sent(store: Store, link: Link, dead: Child) -> None:
    task, worker = store.submit(), store.worker()
    worker.claim()
    deaths = Recovery()
    _noted(deaths, dead, worker.slot.id)
    deaths.settle(link, {uuid4().int})
    assert store.row(task)["sender_gone_at"] is not None
