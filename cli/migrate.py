"""`deadsure migrate`: the schema, brought to this version in one transaction."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from ..runtime import db, loading
from ..runtime.db import Connection, Settings
from ..runtime.store import migrate, pool
from .config import Config
from .options import DONE, FAILED, add_app, load_config, say
from .wiring import app_of, database_settings

EXAMPLES = """\
  deadsure migrate                        apply what is missing; safe when several hosts do it at once
  deadsure migrate --check                change nothing; exit code 1 when the schema is not this version's
  deadsure migrate --sql > schema.sql     only print the SQL, for an empty database
  deadsure migrate --app shop.tasks:app   register the application's kinds too, so that they can be submitted
"""

#: A migration may have to wait for another host's, and may rewrite a table: seconds.
_STATEMENT_TIMEOUT = 600.0


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only say whether the schema is this version's")
    parser.add_argument("--sql", action="store_true", help="only print the SQL, without a database")
    add_app(parser)


def run(arguments: Namespace) -> int:
    """Raises ConfigurationError, DatabaseUnavailable, SchemaMismatch or AppNotLoaded."""
    if arguments.sql:
        print(migrate.script(), end="")
        return DONE
    config = load_config(arguments)
    connection = db.connect(patient(database_settings(config)), "deadsure migrate")
    try:
        if arguments.check:
            return _check(connection)
        apply(connection)
        if arguments.app is not None:
            _register(connection, config)
    finally:
        connection.close()
    return DONE


def apply(connection: Connection) -> None:
    """Apply what is missing, and say what that was. Raises SchemaMismatch."""
    applied = migrate.migrate(connection)
    for name in applied:
        say(f"applied migration {name}")
    if not applied:
        say("the schema is this version's; nothing to do")


def patient(settings: Settings) -> Settings:
    """The same database, with time for a migration."""
    return replace(settings, statement_timeout=max(settings.statement_timeout, _STATEMENT_TIMEOUT))


def _check(connection: Connection) -> int:
    missing = migrate.pending(connection)
    for migration in missing:
        say(f"missing: {migration.name}")
    say("run `deadsure migrate`" if missing else "the schema is this version's")
    return FAILED if missing else DONE


def _register(connection: Connection, config: Config) -> None:
    kinds = loading.load(app_of(config), config.app_dir.absolute()).kinds
    pool.register_kinds(connection, kinds)
    say(f"registered {len(kinds)} kinds: {', '.join(kind.name for kind in kinds)}")
