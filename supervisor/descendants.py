"""What a dead worker leaves behind: its process group, and descendants that left the group.

A process that a handler started may still send what the handler prepared, so no recovery is committed before it is
gone. Every worker is the parent of its own orphans while it lives. When it dies they pass to the supervisor: so every
child of the supervisor that it did not fork itself belonged to a worker that is dead, and may be killed; an orphan of
a LIVING worker is never among them. Killing one can bring up its children, so this goes on until none is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from functools import cache


def kill_strangers(known: Collection[int]) -> int:
    """Kill every child of this process that is not in `known`, and collect those that have ended.

    Returns how many are still there; call it again until none is. Never waits. Their pids cannot be another
    process's: they are our children, and nobody else collects them.
    """
    left = 0
    for pid in children():
        if pid in known:
            continue
        left += 1
        try:
            # Raises unless it is our child: the list may have changed while it was read, and a number be cut in two.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                left -= 1
        except (ProcessLookupError, ChildProcessError):
            left -= 1
    return left


def children() -> list[int]:
    """Our children; all of them were forked, or adopted, by the main thread.

    Called once at the start, it can still tell when no descriptor is left to open anything with.
    """
    fd, found = _file(os.getpid()), b""
    while data := os.pread(fd, 65536, len(found)):
        found += data
    return [int(pid) for pid in found.split()]


@cache
def _file(me: int) -> int:
    """The kernel's list of our children, which stays open."""
    return os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC)
