"""The driver layer: connections that say of every statement whether it was done, surely not done, or in doubt.

pg8000 alone cannot tell. Four habits, its own and the server's, rule this file:

- After many exceptions an unread answer is left in the socket, and every later statement silently returns the answer
  of the one before. So a connection is thrown away after any exception that is not an ERROR answered by the server,
  and parameters are encoded before the driver sees them.
- A statement that never arrived and one whose answer was lost raise the same exception. verdict.py is the only place
  that judges.
- A server that is told to stop waiting for its synchronous standby answers with success and only warns. `_guarded`
  looks at the warnings, because such a commit can still be lost with the primary.
- `close()` writes to the socket, and in a forked child that ends the parent's session. `discard` closes the
  descriptor only.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pg8000 import exceptions as pg
from pg8000.native import PreparedStatement

from .driver import Driver
from .dsn import Dsn, Host
from .errors import DatabaseUnavailable, InDoubt, NotReplicated, StoreError, Unreachable
from .parameters import Value, encode_all
from .sql import Statement
from .timed_socket import SOCKET_MARGIN, TimedSocket, TimedTlsSocket, timed, timed_tls
from .verdict import answered_with_error, field, not_committing, text, verdict

Row = Sequence[Any]

#: The SQLSTATE of a server that has become a standby: the next connection looks for the primary anew.
_READ_ONLY = "25006"

#: Every statement of ours finds its rows by an index, and in its order. A plan made while the tables were empty would
#: read them whole instead, or a whole queue by a bitmap to sort it; and a prepared statement keeps its plan until the
#: next ANALYZE, which may be minutes away.
#: Before PostgreSQL 18 what is off is only made dear, so dear that every plan which needs it (a foreign key's check of
#: a table without an index) would be compiled at each run, for seconds: so jit is off as well.
PLANS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
         "jit": "off", "plan_cache_mode": "force_generic_plan"}  # fmt: skip

#: Of each list of hosts the one that was the primary last: hosts that are gone without a word are not waited for anew.
_latest: dict[tuple[Host, ...], Host] = {}

#: What every warning of a commit that did not wait for its standby speaks of (its SQLSTATE says nothing).
_NOT_REPLICATED = b"synchronous replication"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to connect, and how long anything may take. Durations are seconds; a lock_timeout of 0 is none."""

    dsn: Dsn
    connect_timeout: float = 1.0
    statement_timeout: float = 2.0
    lock_timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class Backend:
    """One server session, named so that another session can end exactly it."""

    pid: int
    started: str


class Connection:
    """One session with the primary. For one thread, in the process that opened it.

    Every statement is prepared once and costs one round trip. Raises StatementRefused or NotStorable (surely not
    done, the connection stays usable), DatabaseUnavailable (surely not done) or InDoubt (unknown); after the last two
    the connection is discarded. A whole statement takes at most statement_timeout and a margin, or what
    `wait_at_most` left it: then it is in doubt.
    """

    def __init__(self, driver: Driver, timeout: float) -> None:
        self._driver = driver
        self._socket: TimedSocket | TimedTlsSocket = driver._usock
        self._timeout = timeout
        self._latest = math.inf
        self._prepared: dict[str, PreparedStatement] = {}
        self._in_transaction = False
        self._backend: Backend | None = None
        self.usable = True

    def run(self, statement: Statement, **parameters: Value) -> list[Row]:
        """Run one statement; outside a transaction it commits by itself. Returns its rows."""
        encoded = encode_all(statement.name, parameters)
        rows: list[Row] = self._guarded(statement.name, self._execute, statement, encoded)
        return rows

    def script(self, text: str) -> None:
        """Run statements without parameters in one go. For migrations, inside a transaction."""
        self._guarded("script", self._driver.run, text)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN, then COMMIT, or ROLLBACK when the block raises.

        Raises InDoubt when the COMMIT's answer was lost.
        """
        self._simple("begin")
        self._in_transaction = True
        try:
            yield
        except BaseException:
            self._in_transaction = False
            if self.usable:
                with contextlib.suppress(StoreError):
                    self._simple("rollback")
            raise
        self._in_transaction = False
        self._simple("commit")

    @property
    def backend(self) -> Backend | None:
        """The server process of this session, where `identify` was called."""
        return self._backend

    def identify(self, statement: Statement) -> None:
        """Ask the server which backend serves this session, once, so that a later session can end it."""
        pid, started = self.run(statement)[0]
        self._backend = Backend(pid, started)

    def wait_at_most(self, seconds: float) -> None:
        """Let everything from now on, up to the next call of this, end within `seconds`: a caller's budget."""
        self._latest = time.monotonic() + max(0.001, seconds)

    def heard(self) -> list[str]:
        """The payloads of the notifications that came in with answers since the last call."""
        payloads = [payload for _, _, payload in self._driver.notifications]
        self._driver.notifications.clear()
        return payloads

    def fileno(self) -> int:
        """The socket's descriptor: readable when something came in unasked, -1 when it is closed."""
        return self._socket.fileno()

    def discard(self) -> None:
        """Close the descriptor without a word to the server. Safe in a forked child, and when called twice."""
        self.usable = False
        if self._driver._usock is not None:
            _close(self._driver._usock)

    def close(self) -> None:
        """End the session in good order."""
        if not self.usable:
            return
        self.usable = False
        raw = self._driver._usock
        with contextlib.suppress(pg.Error, OSError):
            self._driver.close()
        _close(raw)

    def _execute(self, statement: Statement, parameters: dict[str, str | None]) -> list[Row]:
        prepared = self._prepared.get(statement.name)
        if prepared is None:
            prepared = self._prepared[statement.name] = self._driver.prepare(statement.text)
        rows: list[Row] | None = prepared.run(**parameters)
        return rows or []

    def _simple(self, text: str) -> None:
        self._guarded(text, self._driver.run, text)
        # A COMMIT of a failed transaction answers ROLLBACK without an error; a session inside one answers 'T' or 'E'.
        if text == "commit" and self._driver._transaction_status != b"I":
            self.discard()
            raise InDoubt("the server did not confirm the COMMIT")

    def _guarded(self, what: str, call: Any, *arguments: Any) -> Any:
        if not self.usable:
            raise DatabaseUnavailable("the database connection was lost; nothing was sent")
        self._socket.until = min(time.monotonic() + self._timeout, self._latest)
        try:
            answer = call(*arguments)
        except BaseException as error:
            if not answered_with_error(error) or field(error, "C") == _READ_ONLY:
                self.discard()
            if isinstance(error, Exception):
                raise verdict(what, error, self._in_transaction) from error
            raise
        finally:
            self._socket.until = math.inf
        if self._driver.notices:
            self._look_at_notices(what)
        if (why := _no_primary(self._driver)) is not None:
            # It answered as what it has become: a standby's or a fenced server's word on a task is worth nothing.
            self.discard()
            said = f"{what} was answered, but {why}"
            raise DatabaseUnavailable(said) if not_committing(what, self._in_transaction) else InDoubt(said)
        return answer

    def _look_at_notices(self, what: str) -> None:
        texts = [notice.get(b"M", b"") for notice in self._driver.notices]
        self._driver.notices.clear()
        if any(_NOT_REPLICATED in text for text in texts):
            self.discard()
            raise NotReplicated(
                f"{what} is committed on the primary, but somebody made it stop waiting for its synchronous standby: "
                "it is lost if that primary is lost"
            )


def connect(settings: Settings, name: str) -> Connection:
    """Open a session with the primary; of several hosts the one that was it last, else the first that is.

    `name` is shown in pg_stat_activity. Raises DatabaseUnavailable, which names each host and what it said.
    """
    reasons = []
    hosts = settings.dsn.hosts
    for host in sorted(hosts, key=lambda host: host != _latest.get(hosts)):
        try:
            connection = _connect(settings, host, name)
        except DatabaseUnavailable as error:
            reasons.append(f"{host}: {error}")
        else:
            _latest[hosts] = host
            return connection
    raise Unreachable(reasons)


def _connect(settings: Settings, host: Host, name: str) -> Connection:
    deadline = time.monotonic() + settings.connect_timeout
    timeout = settings.statement_timeout + SOCKET_MARGIN
    raw: TimedSocket | None = None
    try:
        raw = _open_socket(host, settings.connect_timeout, timeout)
        # The driver's first words, TLS and SCRAM, by the same deadline.
        raw.until = deadline
        raw.settimeout(max(0.05, deadline - time.monotonic()))
        driver = _start_session(settings, host, name, raw)
    except Exception as error:
        # Everything that the driver, its SCRAM library and TLS raise here means the same: there is no session.
        if raw is not None:
            _close(raw)
        raise DatabaseUnavailable(text(error)) from error
    connection = Connection(driver, timeout)
    if (why := _no_primary(driver)) is not None:
        connection.close()
        raise DatabaseUnavailable(why)
    return connection


def _no_primary(driver: Driver) -> str | None:
    """Why this server is not the one to ask; None when it is. PostgreSQL 14 and later report it with every change."""
    if driver.parameter_statuses.get("in_hot_standby") == "on":
        return "it is a standby, and no state is ever read from one"
    if driver.parameter_statuses.get("default_transaction_read_only") == "on":
        return "it is read-only, as a primary is that another one has replaced"
    return None


def _start_session(settings: Settings, host: Host, name: str, raw: TimedSocket) -> Driver:
    dsn = settings.dsn
    tls = dsn.ssl_context()
    milliseconds = str(int(settings.statement_timeout * 1000))
    return Driver(
        dsn.user,
        host=host.name,
        database=dsn.database,
        password=dsn.password,
        sock=raw,
        ssl_context=timed_tls(tls, raw.until) if tls else False,
        application_name=name,
        startup_params={
            "statement_timeout": milliseconds,
            "lock_timeout": str(int(settings.lock_timeout * 1000)),
            # Nothing of ours waits inside a transaction: no user code runs there.
            "idle_in_transaction_session_timeout": "10000",
            "TimeZone": "UTC",
            "DateStyle": "ISO, YMD",
            "default_transaction_isolation": "read committed",
            **PLANS,
        },
    )


def _open_socket(host: Host, connect_timeout: float, unacknowledged: float) -> TimedSocket:
    if host.is_socket:
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.settimeout(connect_timeout)
        try:
            raw.connect(host.socket_path)
        except OSError:
            raw.close()
            raise
        return timed(raw)
    raw = socket.create_connection((host.address or host.name, host.port), connect_timeout)
    # Without NODELAY a statement with 8 to 20 kB of parameters stalls 40 ms (Nagle against the delayed ACK).
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unacknowledged * 1000))
    return timed(raw)


def _close(raw: socket.socket) -> None:
    """Close the descriptor now: `socket.close` would wait for the driver's buffered file to be collected."""
    descriptor = raw.detach()
    if descriptor >= 0:
        os.close(descriptor)
