"""A database where none is configured: the embedded one that runs; for drills and measurements one started here."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from ..runtime import db
from ..runtime.errors import DeadsureError
from ..runtime.store import migrate
from .config import KEYS, Config, environment
from .embedded import NAME, EmbeddedError, EmbeddedPostgres, default_data_dir
from .migrate import patient
from .options import say
from .wiring import database_settings


class NoDatabase(DeadsureError):
    """There is no database for this; nothing was started."""


@contextmanager
def database(config: Config, data: Path | None) -> Iterator[Config]:
    """The configuration with a database in it: the configured one, an embedded one that runs, or one started here."""
    with own_or_other(config, data) as (settled, _):
        yield settled


@contextmanager
def own_or_other(config: Config, data: Path | None) -> Iterator[tuple[Config, EmbeddedPostgres | None]]:
    """As `database`, and the server, where it was started here: nobody else is meant to use that one."""
    if config.database.dsn is not None:
        yield config, None
        return
    running = or_running(config, data)
    if running.database.dsn is not None:
        yield running, None
        return
    folder = _folder(data)
    postgres = EmbeddedPostgres(folder)
    say(f"starting PostgreSQL in {folder}")
    try:
        postgres.start()
    except EmbeddedError as error:
        raise NoDatabase(str(error)) from None
    try:
        yield _on(config, postgres.dsn()), postgres
    finally:
        postgres.stop()


def or_running(config: Config, data: Path | None) -> Config:
    """The configuration; where it names no database, with the one that `deadsure up` runs on this machine, if any."""
    if config.database.dsn is None and (dsn := _running(_folder(data))) is not None:
        say(f"using the PostgreSQL that runs in {_folder(data)}")
        return _on(config, dsn)
    return config


def _folder(data: Path | None) -> Path:
    return (data or default_data_dir(environment())).absolute()


def _running(folder: Path) -> str | None:
    """The DSN of the server that `deadsure up` runs in this folder. A server's working directory is its cluster."""
    cluster = folder / "pg"
    with suppress(OSError, ValueError, IndexError):
        pid, _, _, port, socket, *_ = (cluster / "postmaster.pid").read_text().splitlines()
        if Path(f"/proc/{int(pid)}/cwd").resolve(strict=True) == cluster.resolve():
            return f"postgresql://{NAME}@:{int(port)}/{NAME}?host={quote(socket.strip())}"
    return None


def _on(config: Config, dsn: str) -> Config:
    return msgspec.structs.replace(config, database=msgspec.structs.replace(config.database, dsn=dsn))


def migrated(config: Config) -> None:
    connection = db.connect(patient(database_settings(config)), "deadsure drill")
    try:
        migrate.migrate(connection)
    finally:
        connection.close()


def variables(config: Config, arguments: Namespace) -> dict[str, str]:
    """The environment for the drill's `deadsure serve`: ours, and the database."""
    variables = {**environment(), KEYS["database.dsn"].variable: str(config.database.dsn)}
    if arguments.config is not None:
        variables["DEADSURE_CONFIG"] = str(Path(arguments.config).absolute())
    return variables
