"""The driver layer: one deadline for a whole statement, and what a COMMIT warned of."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db
from deadsure.runtime.dsn import Host
from deadsure.runtime.errors import DatabaseUnavailable, InDoubt, NotReplicated
from deadsure.runtime.sql import Statement
from kit import postgres
from kit.store import Store
from kit.wait import wait_until
from pg8000 import native

LONG_ANSWER = Statement("long_answer", "select repeat('x', 100000)")
INSERT = Statement("insert", "insert into written values (1)")


@contextmanager
def trickling(target: int) -> Iterator[tuple[int, threading.Event]]:
    """A proxy that passes bytes on; once the event is set, answers come at 20 bytes a second and never stop."""
    slow = threading.Event()
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def back(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                while slow.is_set() and data and not over.wait(0.05):
                    client.sendall(data[:1])
                    data = data[1:]
                client.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            client, _ = listener.accept()
            with client, socket.create_connection(("127.0.0.1", target)) as server:
                threading.Thread(target=back, args=(server, client), daemon=True).start()
                while data := client.recv(65536):
                    server.sendall(data)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield listener.getsockname()[1], slow
    finally:
        over.set()
        listener.close()
        serving.join(5)


def through(settings: db.Settings, port: int) -> db.Settings:
    return replace(settings, statement_timeout=0.5, dsn=replace(settings.dsn, hosts=(Host("127.0.0.1", port),)))


def test_an_answer_that_trickles_in_ends_at_the_statements_deadline(
    database: db.Settings, server: EmbeddedPostgres
) -> None:
    with trickling(server.port or 5432) as (port, slow):
        connection = db.connect(through(database, port), "test")
        assert len(connection.run(LONG_ANSWER)[0][0]) == 100_000
        slow.set()
        began = time.monotonic()
        with pytest.raises(InDoubt):
            connection.run(LONG_ANSWER)
        assert 1.4 < time.monotonic() - began < 4
        assert not connection.usable


def test_a_callers_budget_bounds_all_its_statements_together(database: db.Settings, server: EmbeddedPostgres) -> None:
    with trickling(server.port or 5432) as (port, slow):
        connection = db.connect(through(database, port), "test")
        connection.run(LONG_ANSWER)
        slow.set()
        connection.wait_at_most(0.2)
        began = time.monotonic()
        with pytest.raises(InDoubt):
            connection.run(LONG_ANSWER)
        assert time.monotonic() - began < 1.2


def test_a_server_that_says_nothing_ends_the_connecting_at_its_deadline(database: db.Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = replace(through(database, silent.getsockname()[1]), connect_timeout=0.3)
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            db.connect(settings, "test")
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_commit_that_did_not_wait_for_its_standby_is_in_doubt(
    store: Store, server: EmbeddedPostgres, in_transaction: bool
) -> None:
    store.query("create table written (n integer)")
    waiting = store.connect("waiting")
    raised: list[InDoubt] = []

    def write() -> None:
        try:
            if in_transaction:
                with waiting.transaction():
                    waiting.run(INSERT)
            else:
                waiting.run(INSERT)
        except InDoubt as error:
            raised.append(error)

    writing = threading.Thread(target=write)
    with postgres.admin(server) as admin:
        _standby(admin, "nobody")
        try:
            writing.start()
            waits = "select pid from pg_stat_activity where application_name = 'waiting' and wait_event = 'SyncRep'"
            ((pid,),) = wait_until(lambda: admin.run(waits), "the commit waits for the standby")
            admin.run("select pg_cancel_backend(:pid)", pid=pid)
            writing.join(10)
        finally:
            _standby(admin, "")
    assert [type(error) for error in raised] == [NotReplicated]
    assert not waiting.usable
    assert store.query("select n from written") == [{"n": 1}]


def _standby(admin: native.Connection, name: str) -> None:
    admin.run(f"alter system set synchronous_standby_names = '{name}'")
    admin.run("select pg_reload_conf()")
    wait_until(lambda: admin.run("show synchronous_standby_names") == [[name]], "the server has read its settings")
