"""The pool lock: one `flock` that every process of a pool holds together.

The supervisor opens `NAME.pool`, its children inherit that open file, and the kernel frees the lock only when the
last of them is dead. So whoever gets the lock knows that every process forked under it is gone: a proof of death that
needs no pid file, no heartbeat and no clock.

A pid file proves nothing (pids are handed out again), and a lock per process would say nothing about its siblings.
What an incarnation writes into the database is the file's identity: the random id in it, device, inode and boot id. A
copied file, another container or a reboot does not match, and those incarnations are left to the lease.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from uuid import UUID, uuid4

from ..runtime.errors import ConfigurationError
from ..runtime.model import LockIdentity

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PoolLock:
    """The open lock file of one pool. Open it before the first fork, take it later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            said = f"cannot open the pool lock {path}: {error.strerror}; nothing was started"
            raise ConfigurationError(said) from error
        self.held = False

    def take(self) -> bool:
        """Try to lock it, without waiting. True: every process that was forked under it before is dead."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.held = True
        return True

    def identity(self) -> LockIdentity:
        """Who this lock is. The id is written on first use; call it only while holding the lock."""
        found = os.fstat(self.fd)
        return LockIdentity(self._id(), found.st_dev, found.st_ino, _BOOT_ID.read_text().strip())

    def _id(self) -> UUID:
        try:
            return UUID(os.pread(self.fd, 36, 0).decode("ascii"))
        except ValueError:
            made = uuid4()
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"{made}\n".encode(), 0)
            os.fsync(self.fd)
            return made
