"""The pool lock: one `flock` that every process of a pool holds together.

The supervisor opens `NAME.pool`, its children inherit that open file, and the kernel frees the lock only when the
last of them is dead. So whoever gets the lock knows that every process forked under it is gone: a proof of death that
needs no pid file, no heartbeat and no clock.

A pid file proves nothing (pids are handed out again), and a lock per process would say nothing about its siblings.
What an incarnation writes into the database is the file's identity: the random id in it, device, inode and boot id. A
copied file, another container or a reboot does not match, and those incarnations are left to the lease.

Its limits: a process that a worker exec'ed does not hold it (the descriptor is closed on exec), and one that a worker
forked as a daemon can hold it for ever. So a new supervisor waits for it no longer than the old leases last, names
the holders and signals none of them, and then goes on under a new file with a new id.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from uuid import UUID, uuid4

from ..runtime.errors import ConfigurationError
from ..runtime.model import LockIdentity
from . import kernel

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: File systems whose flock is another machine's business, or nobody's; by the magic number that statfs gives.
_NOT_LOCAL = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x65735546: "FUSE",
    0x0BD00BD0: "Lustre",
}


class PoolLock:
    """The open lock file of one pool. Open it before the first fork, take it later.

    Raises ConfigurationError when the file cannot be opened, or lies where a lock proves nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = _open(path)
        self.held = False
        self.replaced = False

    def take(self) -> bool:
        """Try to lock it, without waiting. True: every process that was forked under it before is dead."""
        if not _try_lock(self.fd):
            return False
        self.held = True
        return True

    def replace(self) -> None:
        """Go on under a new file with a new id, in place of one that somebody holds for ever. Holds it at once.

        The descriptor's number stays, but children forked before do not share the new file: fork them anew.
        """
        fresh = self.path.with_name(f".{self.path.name}.{uuid4().hex}")
        fd = _open(fresh)
        _try_lock(fd)
        os.rename(fresh, self.path)
        os.dup2(fd, self.fd, inheritable=False)
        os.close(fd)
        self.held = self.replaced = True

    def identity(self) -> LockIdentity:
        """Who this lock is. The id is written by the first who holds it; without holding it, read at most."""
        found = os.fstat(self.fd)
        return LockIdentity(self._id(), found.st_dev, found.st_ino, _BOOT_ID.read_text().strip())

    def holders(self) -> list[str]:
        """The processes that have the file open and can be seen from here, as `pid (name)`. For people."""
        mine = os.fstat(self.fd)
        return [f"{pid} ({_name(pid)})" for pid in _others() if _has_open(pid, mine)]

    def _id(self) -> UUID:
        try:
            return UUID(os.pread(self.fd, 36, 0).decode("ascii"))
        except ValueError:
            made = uuid4()
            if self.held:
                os.ftruncate(self.fd, 0)
                os.pwrite(self.fd, f"{made}\n".encode(), 0)
                os.fsync(self.fd)
            return made


def _open(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        said = f"cannot open the pool lock {path}: {error.strerror}; nothing was started"
        raise ConfigurationError(said) from error
    kind = _NOT_LOCAL.get(kernel.file_system(fd))
    if kind is not None or not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        where = f"lies on {kind}" if kind else "is not a regular file"
        raise ConfigurationError(
            f"the pool lock {path} {where}, where a lock proves nothing about this machine's processes; "
            "nothing was started. Set [pool] runtime_dir to a local folder, such as one under /run"
        )
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _others() -> list[int]:
    me = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != me]


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    try:
        for link in os.scandir(f"/proc/{pid}/fd"):
            found = os.stat(link.path)
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except OSError:  # it ended, or is another user's
        return False
    return False


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
