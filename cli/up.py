"""`deadsure up`: everything on this machine, for trying it out and for a single host."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..drills.ledger_process import LedgerProcess
from ..runtime import db
from ..runtime.errors import DeadsureError
from ..runtime.store import migrate
from . import guide
from .address import Address
from .config import KEYS, Config, environment
from .embedded import EmbeddedError, EmbeddedPostgres, default_data_dir
from .migrate import patient
from .options import add_data, add_pool, hear_interrupts, load_config, say
from .owner import Owner
from .runtime_dir import prepare_runtime_dir
from .serve import open_listener
from .wiring import database_settings, runtime_dir_of, tokens_of

DEMO = "deadsure.drills.demo:app"
#: Where the demo application looks for its ledger.
LEDGER = "DEADSURE_LEDGER_URL"
LEDGER_PORT = 8471
EXAMPLES = """\
  deadsure up                                     the built-in demo application
  deadsure up --app shop.tasks:app --workers 8    your own
  DEADSURE_DATABASE_DSN=postgresql://app@db/app deadsure up     on a PostgreSQL that runs already

Without a DSN it starts a PostgreSQL of its own, whose data stays in --data. Ctrl-C drains, a second one stops at once.
"""


class NotStarted(DeadsureError):
    """The embedded PostgreSQL was not started, and so nothing was."""


def add_options(parser: ArgumentParser) -> None:
    add_pool(parser)
    add_data(parser)


def run(arguments: Namespace) -> int:
    """Run it all until told to stop; what the supervisor returns. Raises what `serve` and `migrate` do, NotStarted."""
    config = load_config(arguments)
    config = msgspec.structs.replace(config, app=config.app or DEMO)
    tokens_of(config)
    hear_interrupts()
    with open_listener(config.http.address) as listener, _database(config, arguments.data) as (settled, postgres):
        _migrate(settled)
        address = Address(config.http.address.host, listener.getsockname()[1])
        variables = _variables(settled, arguments, address)
        with _ledger(settled, variables) as keep:
            return Owner(listener, variables, postgres, lambda: guide.ready(settled, address, postgres), keep).run()


@contextmanager
def _database(config: Config, data: Path | None) -> Iterator[tuple[Config, EmbeddedPostgres | None]]:
    """The configuration with a database in it, and the PostgreSQL that this command owns, if it does."""
    if config.database.dsn is not None:
        yield config, None
        return
    postgres = EmbeddedPostgres(data or default_data_dir(environment()))
    say(f"starting PostgreSQL in {postgres.data}")
    try:
        postgres.start()
    except EmbeddedError as error:
        raise NotStarted(str(error)) from None
    try:
        yield _on(postgres, config), postgres
    finally:
        postgres.stop()
        say("PostgreSQL has stopped")


def _on(postgres: EmbeddedPostgres, config: Config) -> Config:
    """The pool's lock goes with the data, so that two `up` on two folders are two pools."""
    replace = msgspec.structs.replace
    runtime_dir = config.pool.runtime_dir or postgres.data / "run"
    return replace(
        config,
        database=replace(config.database, dsn=postgres.dsn()),
        pool=replace(config.pool, runtime_dir=runtime_dir),
    )


@contextmanager
def _ledger(config: Config, variables: dict[str, str]) -> Iterator[Callable[[], None]]:
    """The demo application's ledger, a process of its own, unless there is one; its address goes into `variables`.

    What it yields is to be called now and then, and starts the ledger again when it has ended.
    """
    if config.app != DEMO or LEDGER in variables:
        yield lambda: None
        return
    folder = prepare_runtime_dir(runtime_dir_of(config))
    with _listening(folder / "ledger.jsonl") as ledger:
        variables[LEDGER] = ledger.url
        say(f"the demo's ledger is {ledger.url}, its book {ledger.file}")

        def keep() -> None:
            if ledger.pid is None:
                say("the demo's ledger has ended; starting it again")
                ledger.start()

        yield keep


def _listening(book: Path) -> LedgerProcess:
    """On the port by convention, so that it is the same ledger next time; on another one where that is taken."""
    try:
        return LedgerProcess(book, port=LEDGER_PORT)
    except OSError:
        return LedgerProcess(book)


def _migrate(config: Config) -> None:
    connection = db.connect(patient(database_settings(config)), "deadsure up")
    try:
        for name in migrate.migrate(connection):
            say(f"applied migration {name}")
    finally:
        connection.close()


def _variables(config: Config, arguments: Namespace, address: Address) -> dict[str, str]:
    """The environment for `deadsure serve`: ours, and what is only known here. Nothing of it shows in `ps`."""
    known = {
        "app": config.app,
        "app_dir": config.app_dir.absolute(),
        "database.dsn": config.database.dsn,
        "pool.workers": config.pool.workers,
        "pool.runtime_dir": config.pool.runtime_dir,
        "http.bind": address,
    }
    variables = dict(environment())
    variables |= {KEYS[key].variable: str(value) for key, value in known.items() if value is not None}
    if arguments.config is not None:
        variables["DEADSURE_CONFIG"] = str(Path(arguments.config).absolute())
    return variables
