"""The configuration: option > environment > file > default. The only reader of the environment in the product.

One TOML file, and every key of it also as a variable: `[pool] workers` is DEADSURE_POOL_WORKERS, `app` is DEADSURE_APP;
lists are comma-separated. A mistake stops the start: an unknown key, an empty variable, a value out of bounds. Only an
unknown variable is no more than a warning, because the environment may be shared with others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ..runtime import dsn
from ..runtime.errors import ConfigurationError
from ..runtime.timed_socket import SOCKET_MARGIN
from ..supervisor.stopping import GRACE
from . import layers
from .address import Address, parse_address

DEFAULT_URL = "http://127.0.0.1:8470"

Seconds = Annotated[float, Meta(gt=0, le=86400)]
Count = Annotated[int, Meta(ge=1, le=512)]
Text = Annotated[str, Meta(min_length=1)]
#: `check` is called by the layer that gives a value, and raises ValueError.
Bind = Annotated[str, Meta(extra={"check": parse_address})]
#: A pool's name is also the name of its lock file.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


class Database(Struct, frozen=True):
    """`[database]`. The DSN's text may hold a password: never print it, print the parsed `Dsn`."""

    dsn: Text | None = None
    password_file: Path | None = None
    connect_timeout: Seconds = 1.0
    statement_timeout: Seconds = 2.0


class Pool(Struct, frozen=True):
    """`[pool]`. Without a `runtime_dir` there is one by convention, see runtime_dir.py.

    `stop_timeout` is when whoever stops this pool loses patience and kills it: systemd's TimeoutStopSec.
    """

    name: Name = "default"
    workers: Count = 4
    queues: tuple[str, ...] = ("default",)
    lease: Seconds = 60.0
    renew_every: Seconds = 5.0
    poll_interval: Seconds = 1.0
    drain_timeout: Seconds = 30.0
    start_timeout: Seconds = 30.0
    stop_timeout: Seconds | None = None
    runtime_dir: Path | None = None


class Http(Struct, frozen=True):
    """`[http]`. `db_connections` are those of one api process; `max_body` is in bytes."""

    bind: Bind = "127.0.0.1:8470"
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    request_budget: Seconds = 2.0
    db_connections: Annotated[int, Meta(ge=1, le=100)] = 4
    max_body: Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024

    @property
    def address(self) -> Address:
        """`bind`, parsed."""
        return parse_address(self.bind)


class Auth(Struct, frozen=True):
    """`[auth]`."""

    tokens_file: Path | None = None


class Log(Struct, frozen=True):
    """`[log]`."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Drills(Struct, frozen=True):
    """`[drills]`: whether this installation may be harmed on purpose."""

    enabled: bool = True


class Config(Struct, frozen=True):
    """Everything that can be configured, checked. `app_dir` comes first on sys.path when the app is imported."""

    app: Text | None = None
    app_dir: Path = Path()
    database: Database = Database()
    pool: Pool = Pool()
    http: Http = Http()
    auth: Auth = Auth()
    log: Log = Log()
    drills: Drills = Drills()


#: Variables that are no keys of the file: where the file is, what the client commands use, and the demo application.
OTHER_VARIABLES = ("DEADSURE_CONFIG", "DEADSURE_URL", "DEADSURE_TOKEN_FILE", "DEADSURE_LEDGER_URL")

SECTIONS: dict[str, type[Struct]] = {
    "database": Database,
    "pool": Pool,
    "http": Http,
    "auth": Auth,
    "log": Log,
    "drills": Drills,
}
KEYS = layers.keys(Config, SECTIONS)


def environment() -> Mapping[str, str]:
    """The process's environment. Everybody else is handed what this module read."""
    return os.environ


def load(file: str | None = None, options: Mapping[str, str | None] | None = None) -> Config:
    """Read all layers. `options` are texts by key (`pool.workers`), None where the option was not given.

    Raises ConfigurationError, which names the layer, the key and what is expected; never a secret.
    """
    variables = environment()
    path = file or layers.variable(variables, "DEADSURE_CONFIG")
    found: dict[str, Any] = {}
    if path is not None:
        found |= layers.read_file(Path(path), KEYS)
    found |= layers.read_variables(variables, KEYS)
    found |= layers.read_options(options or {}, KEYS)
    config = _assemble(found)
    check(config)
    return config


def unknown_variables() -> list[str]:
    """One warning for each DEADSURE_ variable that means nothing; its value is not shown."""
    return layers.unknown_variables(environment(), KEYS, OTHER_VARIABLES)


def check(config: Config) -> None:
    """Raises ConfigurationError where two values, or the parts of one, do not go together."""
    pool = config.pool
    if pool.renew_every >= pool.lease:
        raise ConfigurationError(
            f"pool.renew_every ({pool.renew_every:g} s) must be less than pool.lease ({pool.lease:g} s), "
            "else every lease ends before it is renewed"
        )
    _check_queues(pool.queues)
    _check_stop(config)
    _check_password(config.database)


def _check_queues(queues: tuple[str, ...]) -> None:
    if not queues:
        raise ConfigurationError("pool.queues is empty: name at least one queue")
    for queue in queues:
        if not 1 <= len(queue) <= 200 or not queue.isprintable() or queue != queue.strip():
            raise ConfigurationError(f"pool.queues: a queue's name has 1 to 200 printable characters; not {queue!r}")
        if queues.count(queue) > 1:
            raise ConfigurationError(f"pool.queues names {queue!r} twice")


def _check_stop(config: Config) -> None:
    """Drain, kill, settle, end the api children: all of it before somebody kills us in the middle."""
    pool = config.pool
    if pool.stop_timeout is None:
        return
    # The database can hold up the end of the drain once, and the end of it all once more.
    needed = pool.drain_timeout + 2 * GRACE + 2 * _longest_answer(config.database)
    if pool.stop_timeout <= needed:
        raise ConfigurationError(
            f"pool.stop_timeout ({pool.stop_timeout:g} s) is too short for pool.drain_timeout "
            f"({pool.drain_timeout:g} s): stopping can take {needed:g} s, and would be killed before its tasks are "
            "settled. Shorten drain_timeout, or raise TimeoutStopSec and DEADSURE_POOL_STOP_TIMEOUT together"
        )


def _longest_answer(database: Database) -> float:
    """Seconds until a statement has failed, with a connection that must be made for it first."""
    hosts = len(dsn.parse(database.dsn).hosts) if database.dsn is not None else 1
    return hosts * database.connect_timeout + database.statement_timeout + SOCKET_MARGIN


def _check_password(database: Database) -> None:
    if database.dsn is None or database.password_file is None:
        return
    if dsn.parse(database.dsn).password is not None:
        raise ConfigurationError("the password is given twice: in database.dsn and in database.password_file")


def _assemble(found: Mapping[str, Any]) -> Config:
    top: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in found.items():
        section, dot, name = key.partition(".")
        if dot:
            sections[section][name] = value
        else:
            top[section] = value
    parts: dict[str, Any] = {name: SECTIONS[name](**values) for name, values in sections.items()}
    return Config(**top, **parts)
