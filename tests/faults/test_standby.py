"""A synchronous standby: what is acknowledged survives the primary, and nobody is answered by the wrong server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.httpapi.lane import Lane
from deadsure.runtime import db, dsn
from deadsure.runtime.errors import DatabaseUnavailable, InDoubt
from deadsure.runtime.ids import uuid7
from deadsure.runtime.model import Kind
from deadsure.runtime.store import pool, submit
from deadsure.runtime.store.sessions import MOST
from kit import cluster, reckoning
from kit.cluster import Pair
from kit.pool import alive
from kit.scale import count
from kit.site import QUICK, SOON, Site, site
from kit.traffic import Traffic
from kit.wait import wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def pair() -> Iterator[Pair]:
    with cluster.pair() as made:
        yield made


@pytest.fixture
def running(pair: Pair, tmp_path: Path) -> Iterator[Site]:
    with site(pair, tmp_path) as made:
        yield made


@pytest.fixture
def lane(pair: Pair) -> Iterator[Lane]:
    """A lane to a database in which the kind `kind` is registered."""
    made = Lane(cluster.with_schema(pair.primary), "the lane")
    made.do(lambda connection: pool.register_kinds(connection, [Kind("kind")]), time.monotonic() + 5)
    yield made
    made._sessions.close()


def test_the_loss_of_the_primary_loses_nothing(running: Site) -> None:
    rounds = count(long=10, ci=5)
    before = running.pool.worker_pids()
    clients = running.traffic
    with clients.flowing():
        for number in range(1, rounds + 1):
            wait_until(lambda number=number: clients.statuses("POST")[202] > 10 * number, "it flows")  # type: ignore[misc]
            running.fail_over()
            running.pair.replicate()
    clients.check()
    reckoning.settled(running.now)
    states = reckoning.check(running.now, clients)
    assert set(states) == {"succeeded"}
    effects = reckoning.check_effects(running.now, running.ledger.history)
    assert running.pool.worker_pids() == before, "a worker was restarted"
    assert running.pool.stop() == 0
    print(
        f"{rounds} primaries killed, {states.total()} tasks, {effects} effects, all works after {max(running.gaps):.1f}"
        f" s at most, POST {dict(clients.statuses('POST'))}, GET {dict(clients.statuses('GET'))}"
    )


def test_while_commits_wait_for_a_standby_nothing_is_acknowledged_and_nobody_is_stuck(running: Site) -> None:
    clients = running.traffic
    with clients.flowing():
        wait_until(lambda: clients.statuses("POST")[202] > 10, "it flows")
        running.pair.cut()
        began = time.monotonic()
        wait_until(lambda: clients.since(began, "POST")[503] > 8, "submits come to an end, though unstored")
        for said in ("the lease was not renewed", "a lost answer is not settled yet"):
            wait_until(lambda said=said: said in running.pool.log, said)  # type: ignore[misc]
        assert set(clients.since(began, "POST")) == {503}
        shown, safe = (_versions(running.settings, server) for server in (running.pair.primary, running.pair.standby))
        assert not [id for id, version in shown.items() if safe.get(id, 0) < version], "what may be lost is shown"
        joined = time.monotonic()
        running.pair.join()
        running.works_again(joined)
    clients.check()
    reckoning.settled(running.now)
    assert set(reckoning.check(running.now, clients)) == {"succeeded"}
    reckoning.check_effects(running.now, running.ledger.history)
    with reckoning.asking(running.now) as ask:
        assert ask("select max(attempts) from deadsure.tasks") == [[1]]


def test_after_commits_waited_longer_than_the_lease_what_ran_ends_by_its_on_death(pair: Pair, tmp_path: Path) -> None:
    settings = cluster.on_both(cluster.with_schema(pair.primary), pair)
    with cluster.pool(settings, workers=3, options=QUICK | {"POOL_LEASE": "2", "POOL_RENEW_EVERY": "0.4"}) as workers:
        workers.start()
        kinds = ("block.unknown", "block.fail", "block.requeue")
        tasks = [workers.submit(kind, {"go": str(tmp_path / "go")}) for kind in kinds]
        for task in tasks:
            workers.wait_for(task, "running")
        before = workers.worker_pids()
        pair.cut()
        wait_until(lambda: not any(alive(pid) for pid in before), "they are killed: nobody can say that we are trusted")
        (tmp_path / "go").touch()
        pair.join()
        for task, state in zip(tasks, ("unknown", "failed", "succeeded"), strict=True):
            workers.wait_for(task, state, deadline=2 * SOON)
        wait_until(workers.is_ready, "ready", SOON)


def test_commits_that_wait_do_not_use_up_the_connections(pair: Pair, lane: Lane) -> None:
    begun: list[UUID] = []

    def submit_one(connection: db.Connection) -> None:
        begun.append(uuid7())
        submit.submit(connection, [submit.Submission(begun[-1], "kind", "{}")])

    pair.cut()
    for _ in range(MOST):
        with pytest.raises(InDoubt):
            lane.do(submit_one, time.monotonic() + 1)
    for _ in range(5):
        with pytest.raises(DatabaseUnavailable, match="wait for a synchronous standby"):
            lane.do(submit_one, time.monotonic() + 1)
    assert len(begun) == MOST
    with reckoning.asking(cluster.only(lane._settings, pair.primary)) as ask:
        assert ask("select count(*) from pg_stat_activity where application_name = 'the lane'") == [[MOST + 1]]
        pair.join()
        wait_until(lambda: ask("select count(*) from deadsure.tasks") == [[MOST]], "what had waited is there")
    lane.do(submit_one, time.monotonic() + 5)


def test_a_repeat_is_not_accepted_before_the_first_is_safe(pair: Pair, lane: Lane) -> None:
    """The primary crashes while a commit waits: then it shows what the standby does not have."""

    def submit_it(connection: db.Connection) -> submit.Verdict:
        return submit.submit(connection, [submit.Submission(uuid7(), "kind", "{}", key="k")])[0]

    pair.cut()
    with pytest.raises(InDoubt):
        lane.do(submit_it, time.monotonic() + 1)
    pair.primary.kill()
    pair.primary.start()
    with reckoning.asking(lane._settings) as ask:
        assert len(ask("select id from deadsure.tasks where idempotency_key = 'k'")) == 1
    with pytest.raises(InDoubt):
        lane.do(submit_it, time.monotonic() + 1)
    pair.join()
    verdict = lane.do(submit_it, time.monotonic() + 5)
    assert isinstance(verdict, submit.Accepted)
    assert verdict.replayed


def test_a_primary_that_was_made_read_only_is_left_for_the_new_one(pair: Pair) -> None:
    """It is fenced, not stopped: it would go on to answer, with what was true before."""
    both = cluster.on_both(cluster.with_schema(pair.primary), pair)
    with cluster.pool(both, workers=2, options=QUICK) as workers:
        workers.start()
        clients = Traffic(workers.port, lambda number: ("words", {"text": str(number)}))
        with clients.flowing():
            wait_until(lambda: clients.statuses("GET")[200], "it is flowing")
            pair.wait_for_standby(False)
            pair.tell("alter system set default_transaction_read_only = on", "select pg_reload_conf()")
            pair.promote()
            began = time.monotonic()
            wait_until(lambda: clients.since(began, "POST")[202] > 5, "submits are accepted by the new one", SOON)
            wait_until(lambda: clients.since(began, "GET")[200] > 5, "and reads come from it")
        clients.check()  # a 404 would be the old one's answer
        settings = cluster.only(both, pair.primary)
        reckoning.settled(settings)
        assert set(reckoning.check(settings, clients)) == {"succeeded"}


def test_a_host_that_is_gone_without_a_word_is_waited_for_once(server: EmbeddedPostgres) -> None:
    settings = db.Settings(dsn.parse(server.tcp_dsn()), connect_timeout=1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = (dsn.Host("127.0.0.1", silent.getsockname()[1]), *settings.dsn.hosts)
        both = replace(settings, dsn=replace(settings.dsn, hosts=hosts))
        took = []
        for _ in range(2):
            began = time.monotonic()
            db.connect(both, "test").close()
            took.append(time.monotonic() - began)
    assert took[0] >= 1.0 > took[1]


def _versions(settings: db.Settings, server: EmbeddedPostgres) -> dict[object, int]:
    """The tasks as this server shows them, whether it may be asked or not."""
    with reckoning.asking(cluster.only(settings, server)) as ask:
        found: dict[object, int] = dict(ask("select id, version from deadsure.tasks"))  # type: ignore[arg-type]
        return found
