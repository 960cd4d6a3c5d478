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
from pathlib import Path


def kill_strangers(known: Collection[int]) -> int:
    """Kill every child of this process that is not in `known`, and collect those that have ended.

    Returns how many are still there; call it again until none is. Never waits. Their pids cannot be another
    process's: they are our children, and nobody else collects them.
    """
    left = 0
    for pid in _children():
        if pid in known:
            continue
        left += 1
        try:
            os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                left -= 1
        except (ProcessLookupError, ChildProcessError):
            left -= 1
    return left


def _children() -> list[int]:
    """Our children; all of them were forked, or adopted, by the main thread."""
    me = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
