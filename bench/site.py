"""Where a measurement takes place: a database, and a queue, kinds and a pool of its own name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from uuid import uuid4

from ..runtime import db
from ..runtime.db import Connection, Settings
from ..runtime.ids import uuid7
from ..runtime.store import drill, pool, submit
from ..runtime.store.submit import Accepted, Submission
from . import app

#: Rows of one INSERT.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Site:
    """`variables` is the environment that configures the database for a pool; `name` names everything that is made."""

    database: Settings
    variables: Mapping[str, str]
    folder: Path
    name: str
    connection: Connection
    tell: Callable[[str], None]

    def kind(self, what: str) -> str:
        """The kind `what` of this measurement."""
        return f"{self.name}.{what}"

    def fill(self, what: str, tasks: int) -> None:
        """Submit so many tasks at once, in one commit."""
        with self.connection.transaction():
            for rest in range(tasks, 0, -CHUNK):
                asked = [Submission(uuid7(), self.kind(what), PAYLOAD) for _ in range(min(CHUNK, rest))]
                verdicts = submit.submit(self.connection, asked)
                assert all(isinstance(verdict, Accepted) for verdict in verdicts), verdicts[0]

    def clear(self) -> None:
        """Remove all tasks and register the kinds anew. Only while no pool runs."""
        kinds = app.make(self.name).kinds
        drill.remove(self.connection, self.name, self.name, [kind.name for kind in kinds])
        pool.register_kinds(self.connection, kinds)


PAYLOAD = json.dumps(
    {"text": "a payload of about one hundred bytes, as a task has that names what it works on", "n": 1}
)


@contextmanager
def made(database: Settings, variables: Mapping[str, str], tell: Callable[[str], None]) -> Iterator[Site]:
    """A site; nothing of it is left at the end."""
    name = f"bench-{uuid4().hex[:8]}"
    folder = Path(mkdtemp(prefix=f"deadsure-{name}-"))
    connection = db.connect(database, f"deadsure {name}")
    site = Site(database, variables, folder, name, connection, tell)
    try:
        site.clear()
        yield site
    finally:
        connection.close()
        rmtree(folder, ignore_errors=True)
        _tidy(site)


def _tidy(site: Site) -> None:
    """On a connection of its own: an interrupt may have broken the other one."""
    connection = db.connect(site.database, f"deadsure {site.name}")
    try:
        drill.remove(connection, site.name, site.name, [kind.name for kind in app.make(site.name).kinds])
    finally:
        connection.close()
