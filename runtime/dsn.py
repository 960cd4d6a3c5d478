"""The address of a PostgreSQL: `postgresql://user@h1:p1,h2:p2/db?sslmode=verify-full&sslrootcert=...`.

Parameters that are not known here are refused by name: a misspelt `sslmode` must not connect in the clear.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

from .errors import ConfigurationError

DEFAULT_PORT = 5432
_PARAMETERS = {"host", "sslmode", "sslrootcert"}
_SSL_MODES = ("disable", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Host:
    """One server: a name or address with a port, or the folder of a Unix socket."""

    name: str
    port: int
    #: Where to connect, when the name has been resolved already; the name still counts for TLS.
    address: str | None = None

    @property
    def is_socket(self) -> bool:
        return self.name.startswith("/")

    @property
    def socket_path(self) -> str:
        return f"{self.name}/.s.PGSQL.{self.port}"

    def __str__(self) -> str:
        return self.socket_path if self.is_socket else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Dsn:
    """A parsed DSN. The password never appears in its text form."""

    user: str
    database: str
    hosts: tuple[Host, ...]
    sslmode: str = "disable"
    sslrootcert: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        hosts = ",".join(str(h) for h in self.hosts)
        return f"postgresql://{self.user}@{hosts}/{self.database}"

    def with_password(self, password: str | None) -> Dsn:
        return self if password is None else replace(self, password=password)

    def ssl_context(self) -> ssl.SSLContext | None:
        """A context that really verifies; None for sslmode=disable.

        Raises ConfigurationError when the root certificate cannot be read.
        """
        if self.sslmode == "disable":
            return None
        try:
            context = ssl.create_default_context(cafile=self.sslrootcert)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"cannot read sslrootcert {self.sslrootcert}: {error}") from error
        context.check_hostname = self.sslmode == "verify-full"
        return context


def parse(text: str) -> Dsn:
    """Parse a DSN. Raises ConfigurationError, which never shows the password."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ConfigurationError("the database's DSN is not a URL: postgresql://user@host:port/database") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigurationError("the database's DSN must begin with postgresql://")
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    database = unquote(parts.path.lstrip("/"))
    if not user or not database:
        raise ConfigurationError(
            "the DSN must name a user and a database: postgresql://user@host:port/database; "
            "percent-encode special characters, and keep the password in a password_file"
        )
    # Only now: with an unescaped ? or # in the password, what looks like a parameter is a part of it.
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in parameters:
        if name not in _PARAMETERS:
            known = ", ".join(sorted(_PARAMETERS))
            raise ConfigurationError(f"the DSN's parameter {name!r} is not known; known: {known}")
    return Dsn(
        user=unquote(user),
        database=database,
        hosts=_hosts(hosts, parameters.get("host")),
        sslmode=_sslmode(parameters.get("sslmode", "disable")),
        sslrootcert=parameters.get("sslrootcert"),
        password=unquote(password) or None,
    )


def _sslmode(mode: str) -> str:
    if mode not in _SSL_MODES:
        raise ConfigurationError(f"sslmode={mode} is not supported; use {', '.join(_SSL_MODES)}")
    return mode


def _hosts(netloc: str, folder: str | None) -> tuple[Host, ...]:
    if folder is not None:
        port = netloc.rpartition(":")[2] if netloc else ""
        return (Host(folder, _port(port) if port else DEFAULT_PORT),)
    if not netloc:
        raise ConfigurationError("the DSN names no host; for a Unix socket add ?host=/folder")
    return tuple(_host(part) for part in netloc.split(","))


def _host(text: str) -> Host:
    if text.startswith("["):
        name, _, rest = text[1:].partition("]")
        return Host(name, _port(rest[1:]) if rest else DEFAULT_PORT)
    name, colon, port = text.partition(":")
    return Host(name, _port(port) if colon else DEFAULT_PORT)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigurationError(f"the DSN has the port {text!r}, which is not a number from 1 to 65535")
    return int(text)
