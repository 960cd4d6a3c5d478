"""Only a primary: a standby is refused, and a server that has become read-only is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deadsure.runtime import db, dsn
from deadsure.runtime.errors import DatabaseUnavailable, StatementRefused
from deadsure.runtime.sql import Statement
from kit import postgres
from kit.store import Store

WRITE = Statement("write", "create table written (n integer)")


def test_a_standby_is_refused_and_the_next_host_is_tried(database: db.Settings) -> None:
    with postgres.running_server() as server:
        server.stop()
        (server.data / "pg" / "standby.signal").touch()
        server.start()
        standby = db.Settings(dsn.parse(server.dsn()))
        with pytest.raises(DatabaseUnavailable, match="standby"):
            db.connect(standby, "test").close()
        hosts = (*standby.dsn.hosts, *database.dsn.hosts)
        connection = db.connect(replace(database, dsn=replace(database.dsn, hosts=hosts)), "test")
        assert connection.run(Statement("where", "select pg_is_in_recovery()")) == [[False]]
        connection.close()


def test_a_server_that_has_become_read_only_is_left(store: Store) -> None:
    connection = store.connect()

    def write() -> None:
        with connection.transaction():
            connection.script("set transaction read only")
            connection.run(WRITE)

    with pytest.raises(StatementRefused, match="25006"):
        write()
    assert not connection.usable
