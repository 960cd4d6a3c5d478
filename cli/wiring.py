"""From the configuration to the settings of the parts, with the secrets read from their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..httpapi import tokens
from ..httpapi.settings import ApiSettings
from ..runtime import db, dsn
from ..runtime.errors import ConfigurationError
from ..supervisor.settings import PoolSettings
from .config import Config, environment
from .runtime_dir import default_runtime_dir, prepare_runtime_dir
from .secret_file import read_secret

#: The file in $CREDENTIALS_DIRECTORY that holds the password (systemd: LoadCredential=database_password:/path).
PASSWORD_CREDENTIAL = "database_password"  # noqa: S105  a file's name
#: Likewise the tokens file, where auth.tokens_file names none.
TOKENS_CREDENTIAL = "tokens"


def database_settings(config: Config) -> db.Settings:
    """How to reach the database. Raises ConfigurationError: no DSN, or a password file that cannot be read."""
    if config.database.dsn is None:
        raise ConfigurationError(
            "no database is configured: set database.dsn in the file or DEADSURE_DATABASE_DSN, such as "
            "postgresql://user@host:5432/database (or try `deadsure up`, which brings its own)"
        )
    parsed = dsn.parse(config.database.dsn)
    if parsed.password is None:
        parsed = parsed.with_password(_password(config))
    return db.Settings(parsed, config.database.connect_timeout, config.database.statement_timeout)


def pool_settings(config: Config) -> PoolSettings:
    """What the supervisor is told; the runtime directory is made and checked. Raises ConfigurationError."""
    pool = config.pool
    return PoolSettings(
        database=database_settings(config),
        app=app_of(config),
        app_dir=config.app_dir.absolute(),
        runtime_dir=prepare_runtime_dir(runtime_dir_of(config)),
        name=pool.name,
        workers=pool.workers,
        queues=pool.queues,
        lease=pool.lease,
        renew_every=pool.renew_every,
        poll_interval=pool.poll_interval,
        drain_timeout=pool.drain_timeout,
        start_timeout=pool.start_timeout,
        api_processes=config.http.processes,
        notify_socket=environment().get("NOTIFY_SOCKET"),
        watchdog=watchdog(environment()),
    )


def api_settings(config: Config) -> ApiSettings:
    """What an api child is told. Raises ConfigurationError, also when others could reach it without a token."""
    http = config.http
    return ApiSettings(
        database=database_settings(config),
        bind=str(http.address),
        pool=config.pool.name,
        workers=config.pool.workers,
        app=app_of(config),
        app_dir=config.app_dir.absolute(),
        tokens=tokens_of(config),
        request_budget=http.request_budget,
        db_connections=http.db_connections,
        max_body=http.max_body,
    )


def tokens_of(config: Config) -> tuple[tokens.Token, ...]:
    """Who may ask what; nobody in particular where only this machine can ask. Raises ConfigurationError."""
    file = config.auth.tokens_file or credential(TOKENS_CREDENTIAL)
    if file is not None:
        return tokens.parse(read_secret(file))
    if not config.http.address.loopback:
        raise ConfigurationError(
            f"http.bind {config.http.address} can be reached from other machines, and there are no tokens: "
            "set auth.tokens_file, or bind 127.0.0.1"
        )
    return ()


def app_of(config: Config) -> str:
    """The application's `module:attribute`. Raises ConfigurationError when none is configured."""
    if config.app is None:
        raise ConfigurationError('no application is configured: set app = "module:attribute", DEADSURE_APP or --app')
    return config.app


def runtime_dir_of(config: Config) -> Path:
    """The folder of the pool's lock: the configured one, else the one by convention."""
    return config.pool.runtime_dir or default_runtime_dir(environment())


def watchdog(variables: Mapping[str, str]) -> float | None:
    """Seconds between two signs of life that systemd waits for, where that is this process: sd_watchdog_enabled(3)."""
    if variables.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = variables.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isascii() and microseconds.isdigit() and int(microseconds) else None


def _password(config: Config) -> str | None:
    """The configured file's, else the credential's, else none."""
    file = config.database.password_file or credential(PASSWORD_CREDENTIAL)
    return None if file is None else read_secret(file)


def credential(name: str) -> Path | None:
    """The file of that name in $CREDENTIALS_DIRECTORY, None where there is none."""
    folder = environment().get("CREDENTIALS_DIRECTORY")
    file = Path(folder, name) if folder else None
    return file if file is not None and file.exists() else None
