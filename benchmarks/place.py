"""Where a benchmark takes place: a PostgreSQL of its own, durable (fsync on), with the schema, and a site in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deadsure.bench import site as sites
from deadsure.bench.site import Site
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate
from kit import postgres


@contextmanager
def made(tell: Callable[[str], None], statement_timeout: float = 60) -> Iterator[Site]:
    """A site; server and files are gone at the end."""
    with postgres.running_server(durable=True) as server, postgres.database(server) as address:
        settings = db.Settings(dsn.parse(address), statement_timeout=statement_timeout)
        connection = db.connect(settings, "benchmark")
        migrate.migrate(connection)
        connection.close()
        with sites.made(settings, {**os.environ, "DEADSURE_DATABASE_DSN": address}, tell) as site:
            yield site
