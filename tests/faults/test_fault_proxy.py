"""The fault proxy does what it says: a test that trusts it must be able to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from deadsure.runtime import db
from deadsure.runtime.errors import DatabaseUnavailable, InDoubt
from deadsure.runtime.ids import uuid7
from deadsure.runtime.store import read, submit
from kit.fault_proxy import FaultProxy
from kit.fault_rules import Fault
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def connection(store: Store, proxy: FaultProxy) -> Iterator[db.Connection]:
    made = db.connect(replace(proxy.through(store.settings), statement_timeout=0.5), "through the proxy")
    yield made
    made.discard()


def _submit(connection: db.Connection) -> None:
    submit.submit(connection, [submit.Submission(uuid7(), "plain", '"marked"')])


def _stored(store: Store) -> int:
    return len(store.query("select id from deadsure.tasks"))


def test_what_is_dropped_never_arrives(store: Store, proxy: FaultProxy, connection: db.Connection) -> None:
    proxy.add("submit", Fault.DROPPED, holding=b"marked")
    with pytest.raises(InDoubt):
        _submit(connection)
    proxy.wait("dropped")
    assert _stored(store) == 0


def test_what_lost_its_answer_is_carried_out(store: Store, proxy: FaultProxy, connection: db.Connection) -> None:
    proxy.add("submit", Fault.ANSWER_LOST, holding=b"other")
    _submit(connection)
    proxy.add("submit", Fault.ANSWER_LOST, cut="reset")
    with pytest.raises(InDoubt):
        _submit(connection)
    proxy.wait("answer lost")
    (lost,) = proxy.happened("answer lost", "submit")
    assert lost.answer is not None
    assert len(lost.answer.rows) == 1
    assert _stored(store) == 2


@pytest.mark.parametrize("fresh", [False, True])
def test_what_is_late_arrives_after_its_client_has_gone(
    store: Store, proxy: FaultProxy, connection: db.Connection, fresh: bool
) -> None:
    proxy.add("submit", Fault.LATE, until="versions", fresh=fresh)
    with pytest.raises(InDoubt):
        _submit(connection)
    assert _stored(store) == 0
    assert proxy.held() == 1


def test_a_late_one_waits_for_the_statement_it_is_told_to(store: Store, proxy: FaultProxy) -> None:
    settings = proxy.through(store.settings)
    first, second = db.connect(settings, "first"), db.connect(settings, "second")
    proxy.add("submit", Fault.LATE, application="first", until="submit")
    task = submit.Submission(uuid7(), "plain", "1")
    with pytest.raises(InDoubt):
        submit.submit(first, [task])
    _submit(second)
    assert proxy.held() == 1
    submit.submit(second, [task])
    proxy.wait("delivered")
    (late,) = proxy.happened("delivered", "submit")
    assert late.answer is not None
    assert late.answer.rows == [(b"[]",)]  # it has stored nothing
    assert _stored(store) == 2
    second.close()


def test_a_commit_is_known_by_what_it_commits(store: Store, proxy: FaultProxy, connection: db.Connection) -> None:
    proxy.add("commit", Fault.LATE, after="submit", delay=0.01)
    with connection.transaction():
        read.ping(connection)
    with pytest.raises(InDoubt), connection.transaction():
        _submit(connection)
    proxy.wait("delivered")
    assert _stored(store) == 1


def test_what_is_delayed_still_answers_who_waits(store: Store, proxy: FaultProxy, connection: db.Connection) -> None:
    proxy.add("submit", Fault.DELAYED, delay=0.05)
    _submit(connection)
    proxy.wait("delivered")
    assert _stored(store) == 1


def test_a_session_that_was_ended_takes_its_late_statement_with_it(store: Store, proxy: FaultProxy) -> None:
    connection = db.connect(proxy.through(store.settings), "late")
    proxy.add("submit", Fault.LATE, until="versions")
    with pytest.raises(InDoubt):
        _submit(connection)
    store.query("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'late'")
    proxy.wait("never delivered")
    assert _stored(store) == 0


def test_a_black_hole_answers_nobody_and_keeps_both_ends(
    store: Store, proxy: FaultProxy, connection: db.Connection
) -> None:
    assert proxy.blackhole("through", new="silent") == 1
    began = time.monotonic()
    with pytest.raises(InDoubt):
        read.ping(connection)
    assert time.monotonic() - began >= 1
    wait_until(lambda: proxy.silent_and_kept() == 0, "its client gave it up")
    assert store.query("select 1 as one from pg_stat_activity where application_name = 'through the proxy'")
    with pytest.raises(DatabaseUnavailable):
        db.connect(replace(proxy.through(store.settings), connect_timeout=0.1), "another")
    proxy.no_more_faults()
    db.connect(proxy.through(store.settings), "another").close()


def test_an_idle_proxy_ends_at_once(database: db.Settings) -> None:
    proxy = FaultProxy(database.dsn.hosts[0])
    before = threading.active_count()
    proxy.close()
    assert threading.active_count() == before - 1
