"""Waking across hosts: what is committed on one starts on another at once, and a host that is alone announces nothing.

Every pool here polls so seldom that only a wake-up can be why something started in time.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deadsure.httpapi.announcing import EVERY
from deadsure.runtime import db
from deadsure.runtime.store import pool
from deadsure.supervisor.hearing import PAUSE, Hearing
from deadsure.supervisor.incarnation import Incarnation
from deadsure.supervisor.lease import Lease
from deadsure.supervisor.link import Link
from deadsure.supervisor.pool_lock import PoolLock
from deadsure.supervisor.resolver import Resolver
from deadsure.supervisor.settings import PoolSettings
from deadsure.supervisor.shared import new_eventfd
from kit.api import Api
from kit.pool import Pool
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

POLL = 30.0
#: Seconds: far below the poll interval, far above what a wake-up takes on a busy machine.
SOON = 8.0
OPTIONS = {"POOL_POLL_INTERVAL": str(POLL), "POOL_RENEW_EVERY": "0.2"}
#: Callbacks for what comes with a renewal.
IGNORED = (lambda _: None, lambda _: None)
WORDS: dict[str, Any] = {"kind": "words", "payload": {"text": "a b"}}


class Listener:
    """A session of the test's own that hears what is announced."""

    def __init__(self, settings: db.Settings) -> None:
        self.session = db.connect(settings, "listener")
        self.senders: list[str] = []
        pool.listen(self.session)

    def ask(self, text: str, **values: object) -> list[list[Any]]:
        """The rows of a statement."""
        return self.session._driver.run(text, **values) or []

    def hear(self) -> list[str]:
        """Everything that was announced until now, by its sender."""
        pool.hear(self.session)
        self.senders += self.session.heard()
        return self.senders

    def forget(self) -> None:
        """Leave out what was announced until now."""
        self.hear().clear()

    def heard(self, sender: str) -> bool:
        """Whether this one has announced something."""
        return sender in self.hear()

    def sessions(self, name: str) -> list[int]:
        """The backends of the product's sessions of this name."""
        text = "select pid from pg_stat_activity where datname = current_database() and application_name like :name"
        return [pid for (pid,) in self.ask(text, name=f"deadsure {name}%")]

    def end(self, name: str) -> None:
        """End them, as the server does when it is told to stop."""
        for pid in self.sessions(name):
            self.ask("select pg_terminate_backend(:pid, 5000)", pid=pid)


@pytest.fixture
def listener(database: db.Settings) -> Iterator[Listener]:
    """One on the test's database."""
    made = Listener(database)
    yield made
    made.session.close()


def _idle(there: Pool) -> bool:
    return {worker["state"] for worker in there.get("/workers").body["workers"]} == {"idle"}


# --- real pools


def test_what_is_submitted_on_one_host_starts_on_another_long_before_that_one_polls(
    new_pool: Callable[..., Pool], listener: Listener
) -> None:
    here = new_pool(options=OPTIONS | {"POOL_QUEUES": "elsewhere"}).start(ready=False)
    there = new_pool(options=OPTIONS).start(ready=False)
    wait_until(lambda: here.is_ready() and there.is_ready(), "both are ready", 30)
    ((me,),) = listener.ask("select incarnation from deadsure.incarnations where pid = :pid", pid=here.pid)
    first = []

    def announced() -> bool:
        """Whether the host on which it is submitted knows of the other one by now."""
        first.append(here.submit(**WORDS))
        return listener.heard(str(me))

    wait_until(announced, "something is announced", SOON)
    for task in first:
        there.wait_for(task, "succeeded", deadline=SOON)

    def seconds(submit: Callable[[], str]) -> float:
        wait_until(lambda: _idle(there), "the worker waits")
        began = time.monotonic()
        there.wait_for(submit(), "succeeded", deadline=SOON)
        return time.monotonic() - began

    def batch() -> str:
        return str(here.post("/tasks/batch", {"tasks": [WORDS]}).body["tasks"][0]["id"])

    def later() -> str:
        due = datetime.now(UTC) + timedelta(seconds=0.3)
        return here.submit(**WORDS, run_at=due.isoformat())

    took = [seconds(lambda: here.submit(**WORDS)) for _ in range(count(long=50, ci=3))]
    took += [seconds(batch), seconds(later)]
    print(f"submitted on one host, done on the other: {', '.join(f'{s * 1000:.0f} ms' for s in took)}")
    assert [here.stop(), there.stop()] == [0, 0]


def test_a_pool_that_is_alone_announces_nothing_and_hears_everything_also_on_its_next_session(
    new_pool: Callable[..., Pool], listener: Listener
) -> None:
    alone = new_pool(options=OPTIONS).start()
    later = (datetime.now(UTC) + timedelta(seconds=0.2)).isoformat()
    tasks = [alone.submit(**WORDS) for _ in range(20)]
    tasks.append(alone.submit(**WORDS, run_at=later))
    for task in tasks:
        alone.wait_for(task, "succeeded")

    def wakes(payload: str) -> None:
        wait_until(lambda: _idle(alone), "the worker waits")
        ((task,),) = listener.ask("select deadsure.submit('words', jsonb_build_object('text', 'b'))")
        listener.ask("select pg_notify('deadsure_ready', :payload)", payload=payload)
        alone.wait_for(str(task), "succeeded", deadline=SOON)

    (before,) = listener.sessions("supervisor")
    wakes("")
    wakes("ünï☃")
    assert listener.sessions("supervisor") == [before]
    listener.end("supervisor")
    wait_until(lambda: listener.sessions("supervisor"), "it is back")
    wakes("once, perhaps because its session is new")
    wakes("twice")
    assert alone.stop() == 0
    assert len(listener.hear()) == 4, "the test alone has announced something"


# --- the api child


def test_many_submits_are_announced_together_and_the_last_one_too(api: Api, listener: Listener) -> None:
    api.header(announce_as=uuid4())
    with ThreadPoolExecutor(8) as clients:
        began = time.monotonic()
        for _ in clients.map(lambda _: api.submit(), range(200)):
            listener.hear()
        took = time.monotonic() - began
    heard = len(listener.hear())
    print(f"200 submits in {took:.2f} s, {heard} announcements")
    assert 1 <= heard <= took / EVERY + 2
    for _ in range(3):  # each comes right after an announcement
        listener.forget()
        api.submit()
        wait_until(listener.hear, "it is announced as well", SOON)


def test_an_announcement_that_fails_is_nobodys_error_and_the_next_one_is_made(api: Api, listener: Listener) -> None:
    for _ in range(3):
        sender = uuid4()
        api.header(announce_as=sender)
        api.submit()
        wait_until(partial(listener.heard, str(sender)), "it is announced", SOON)
        listener.end("api announcer")
    assert api.log == ""


# --- the supervisor


@dataclass
class Side:
    """What a supervisor has to hear with, beside the incarnation of the store."""

    link: Link
    incarnation: Incarnation
    hearing: Hearing
    wake: int = field(default_factory=new_eventfd)

    def woken(self) -> bool:
        """Whether its idle workers were woken since the last call."""
        with suppress(BlockingIOError):
            return os.eventfd_read(self.wake) > 0
        return False

    def wait(self) -> None:
        """Until its descriptor is readable."""
        descriptor = wait_until(lambda: self.hearing.descriptor, "it looks again", SOON)
        assert descriptor is not None
        assert select.select([descriptor], [], [], SOON)[0]


@pytest.fixture
def side(store: Store, tmp_path: Path) -> Iterator[Side]:
    """One that renews its lease at every turn."""
    link, wake = Link(store.settings, "deadsure hearing", Resolver(store.settings.dsn)), new_eventfd()
    lock = PoolLock(tmp_path / "default.pool")
    settings = PoolSettings(store.settings, "app", tmp_path, tmp_path, renew_every=0.0)
    incarnation = Incarnation(settings, lock, link, print)
    yield Side(link, incarnation, Hearing(link, wake, lambda: incarnation), wake)
    link.close()
    os.close(lock.fd)
    os.close(wake)


def test_a_supervisor_wakes_its_workers_for_what_others_announce_and_not_for_its_own(
    listener: Listener, store: Store, side: Side
) -> None:
    assert side.incarnation.begin(inherit=False)
    assert side.woken(), "what was announced before it listened was not heard"
    side.hearing.announce()
    assert side.woken()
    assert listener.hear() == [], "it does not know of another one"
    assert side.incarnation.renew_if_due(*IGNORED)
    side.hearing.announce()
    assert side.woken()
    wait_until(listener.hear, "it announces", SOON)
    assert listener.senders == [str(side.incarnation.id)]
    side.link.call(pool.hear)
    assert not side.woken(), "it has woken them itself"
    pool.announce(store.connection, store.incarnation)
    side.wait()
    began = time.monotonic()
    side.hearing.listen()
    assert side.woken()
    assert side.hearing.due >= began + PAUSE, "it looks only so often, however much is announced"
    pool.announce(store.connection, store.incarnation)
    wait_until(lambda: side.link.try_call(pool.promote) == 0 and side.woken(), "heard with another answer", SOON)


def test_a_supervisor_notices_the_end_of_its_session_and_hears_on_the_next_one(
    listener: Listener, store: Store, side: Side
) -> None:
    side.link.call(pool.hear)
    assert side.woken()
    listener.end("hearing")
    side.wait()
    side.hearing.listen()
    assert side.hearing.descriptor is None
    wait_until(lambda: side.link.try_call(pool.promote) == 0, "it has a session again", SOON)
    assert side.woken()
    pool.announce(store.connection, store.incarnation)
    side.wait()
    side.hearing.listen()
    assert side.woken()


def test_a_renewal_says_whether_another_incarnation_is_alive(store: Store) -> None:
    lease = Lease(store.incarnation, 60.0)
    store.query("update deadsure.incarnations set token = :t", t=lease.token)

    def others() -> bool:
        assert lease.renew(store.connection)
        return lease.others

    assert not others()
    lost = store.new_incarnation(lease=0.0)
    assert not others(), "the lease of the other one is over"
    store.query(
        "update deadsure.incarnations set lease_until = now() + interval '1 hour' where incarnation = :i", i=lost
    )
    assert others()
    assert pool.end_incarnation(store.connection, lost)
    assert not others()
