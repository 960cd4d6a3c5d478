"""`deadsure doctor`: what a pool on this host needs, looked at one by one. Changes nothing."""

from __future__ import annotations

import fcntl
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ..runtime import db, loading
from ..runtime.db import Connection
from ..runtime.errors import ConfigurationError, DeadsureError, StoreError
from ..runtime.store import inspect, migrate, rights
from .config import Config
from .options import DONE, FAILED, add_app, add_data, load_config
from .runtime_dir import check_runtime_dir
from .staging import or_running
from .wiring import database_settings, runtime_dir_of, tokens_of

EXAMPLES = """\
  deadsure doctor
  deadsure doctor --config /etc/deadsure.toml --app shop.tasks:app

One line each, `ok` or `WRONG` with what to do; exit code 1 when something is wrong.
"""

#: A difference of the clocks that people may begin to notice: seconds.
_CLOCK_TOLERANCE = 2.0

_ROLES = "deploy/postgres/roles.sql"
_NEEDS_LESS = f"it needs much less, see {_ROLES}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen of one subject, and what to do when it is wrong."""

    subject: str
    text: str
    ok: bool = True

    def __str__(self) -> str:
        return f"{'ok' if self.ok else 'WRONG':<5}  {self.subject:<17}  {self.text}"


def add_options(parser: ArgumentParser) -> None:
    add_app(parser)
    add_data(parser)


def run(arguments: Namespace) -> int:
    """Print the findings as they come. Raises OptionError; every other trouble is a finding."""
    healthy = True
    for finding in examine(arguments):
        print(finding, flush=True)
        healthy = healthy and finding.ok
    return DONE if healthy else FAILED


def examine(arguments: Namespace) -> Iterator[Finding]:
    """All findings; those that a wrong one makes impossible are left out."""
    try:
        config = load_config(arguments)
        tokens_of(config)
    except ConfigurationError as error:
        yield Finding("configuration", str(error), ok=False)
        return
    yield Finding("configuration", f"pool {config.pool.name}, {config.pool.workers} workers, API on {config.http.bind}")
    yield _application(config)
    yield from _database(or_running(config, arguments.data))
    yield _runtime_dir(runtime_dir_of(config))


def _application(config: Config) -> Finding:
    if config.app is None:
        return Finding("application", "none is configured; `deadsure serve` needs one")
    try:
        kinds = loading.load(config.app, config.app_dir.absolute()).kinds
    except DeadsureError as error:
        return Finding("application", str(error), ok=False)
    return Finding("application", f"{config.app} has {len(kinds)} kinds")


def _database(config: Config) -> Iterator[Finding]:
    try:
        settings = database_settings(config)
        connection = db.connect(settings, "deadsure doctor")
    except (ConfigurationError, StoreError) as error:
        yield Finding("database", str(error), ok=False)
        return
    try:
        facts = inspect.server_facts(connection)
        yield Finding("database", f"PostgreSQL {facts.version} at {settings.dsn}, a primary")
        yield _role(facts, rights.standing(connection))
        yield _schema(connection)
        yield _clock(connection)
    except StoreError as error:
        yield Finding("database", str(error), ok=False)
    finally:
        connection.close()


def _role(facts: inspect.ServerFacts, standing: rights.Standing | None) -> Finding:
    """What it may and may not do. Too much is worth a word, and nothing that keeps a pool from working."""
    if facts.superuser:
        return Finding("role", f"{facts.role}, a superuser; {_NEEDS_LESS}")
    if standing is None:
        return Finding("role", facts.role)
    if standing.missing:
        missing = ", ".join(standing.missing)
        return Finding("role", f"{facts.role} may not {missing}: grant it deadsure_runtime, see {_ROLES}", ok=False)
    if standing.beyond:
        return Finding("role", f"{facts.role}, which also may {', '.join(standing.beyond)}; {_NEEDS_LESS}")
    return Finding("role", f"{facts.role}, which may run a pool, and cannot change a decision or remove a task")


def _schema(connection: Connection) -> Finding:
    try:
        migrate.check(connection)
    except DeadsureError as error:
        return Finding("schema", str(error), ok=False)
    return Finding("schema", "this version's")


def _clock(connection: Connection) -> Finding:
    before = datetime.now(UTC)
    there = inspect.server_facts(connection).clock
    here = before + (datetime.now(UTC) - before) / 2
    difference = (there - here).total_seconds()
    text = f"the database's is {abs(difference):.3f} s {'ahead of' if difference > 0 else 'behind'} this host's"
    if abs(difference) <= _CLOCK_TOLERANCE:
        return Finding("clock", text)
    return Finding("clock", f"{text}: have both follow NTP; leases hold all the same", ok=False)


def _runtime_dir(path: Path) -> Finding:
    subject = "runtime directory"
    if not path.exists() and not path.is_symlink():
        if os.access(path.parent, os.W_OK | os.X_OK):
            return Finding(subject, f"{path} will be made at the start")
        return Finding(subject, f"{path} is absent and cannot be made here: make it, or set pool.runtime_dir", ok=False)
    try:
        check_runtime_dir(path)
        excluded = _locks_exclude(path)
    except ConfigurationError as error:
        return Finding(subject, str(error), ok=False)
    except OSError as error:
        return Finding(subject, f"cannot lock a file in {path}: {error.strerror}; name a local folder", ok=False)
    if not excluded:
        return Finding(subject, f"flock does not exclude anybody in {path}: name a folder on a local disk", ok=False)
    return Finding(subject, str(path))


def _locks_exclude(folder: Path) -> bool:
    """Whether a second open of a locked file is refused the lock, as a second supervisor must be."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as first, Path(first.name).open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
