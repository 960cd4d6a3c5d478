"""Harm: SIGKILL, to processes that this drill has started and to no others.

A pid is turned into a pidfd first, and only then is asked who its parent is: from there on it cannot become another
process, whatever happens.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..runtime.errors import DeadsureError
from .pool import DrillPool

SIGNAL = signal.SIGKILL
_PATIENCE = 20.0


class NotOurs(DeadsureError):
    """The process that reported is no child of the drill's pool; it was not killed."""


class StillThere(DeadsureError):
    """A process that was killed has not ended in time."""


def kill_worker(pool: DrillPool, pid: int) -> None:
    """Kill the worker with this pid, and wait until it has ended. Raises NotOurs."""
    with _child(pool.pid, pid) as victim:
        signal.pidfd_send_signal(victim, SIGNAL)
        _wait(victim)


def kill_pool(pool: DrillPool) -> None:
    """Kill the supervisor first, so that it cannot settle anything, then everybody else; wait until all have ended."""
    assert pool.process is not None
    victims = [_opened(pid) for pid in children(pool.pid)]
    try:
        pool.process.send_signal(SIGNAL)
        pool.process.wait(_PATIENCE)
        for victim in filter(None, victims):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(victim, SIGNAL)
            _wait(victim)
    finally:
        for victim in filter(None, victims):
            os.close(victim)


def strike(parent: int, pid: int, number: signal.Signals) -> bool:
    """Send this signal to this child of `parent`, if it lives; a SIGKILL is waited for. Raises NotOurs."""
    with _child(parent, pid) as victim:
        if select.select([victim], [], [], 0)[0]:
            return False  # it has ended by itself, and is only not collected yet
        signal.pidfd_send_signal(victim, number)
        if number == signal.SIGKILL:
            _wait(victim)
        return True


@contextmanager
def _child(parent: int, pid: int) -> Iterator[int]:
    """A pidfd of this child of `parent`."""
    victim = _opened(pid)
    if victim is None:
        raise NotOurs(f"the process {pid} that reported has ended already; nothing was killed")
    try:
        if _parent(pid) != parent:
            raise NotOurs(f"the process {pid} that reported is no worker of this drill; nothing was killed")
        yield victim
    finally:
        os.close(victim)


def _opened(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def children(pid: int) -> list[int]:
    """The children of this process's main thread."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait(victim: int) -> None:
    """Until it has ended: a pidfd is readable then, also while nobody has collected it."""
    if not select.select([victim], [], [], _PATIENCE)[0]:
        raise StillThere("a process that was killed has not ended in time")
