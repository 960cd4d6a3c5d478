"""Forking a child, and watching it by pidfd.

Why `os.fork` and pidfds, and not multiprocessing, SIGCHLD or pid files:

- A fork server makes the child somebody else's, and then there is no wait status to learn its end from.
- SIGCHLD coalesces: twenty deaths can arrive as thirteen signals. A pidfd is readable exactly when its process has
  ended, and can never mean another process.
- `waitid(WNOWAIT)` tells signal or exit code while the zombie still pins its pid, so that the recovery can be
  committed before the pid is free to be handed out again.

A pid read from a file or a table is never signalled.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..runtime import events
from . import kernel
from .kernel import Exit


@dataclass(slots=True)
class Child:
    """A forked child. `pidfd` is None where no descriptor could be had; `output` is the pipe that it prints into."""

    pid: int
    pidfd: int | None
    output: int
    collected: bool = False

    def exit(self) -> Exit | None:
        """How it ended; None while it lives. Leaves the zombie."""
        return kernel.peek_exit(self.pid, self.pidfd)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it. Its pid is pinned until `reap`, so this can never reach another process; afterwards it does
        nothing.
        """
        if self.collected:
            return
        try:
            if self.pidfd is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def kill_group(self) -> None:
        """Kill what is left of its process group. Before the reap only: the zombie pins the group's number too."""
        if self.collected:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def reap(self) -> None:
        """Collect it, once. Nothing else may be asked of this child afterwards."""
        if self.collected:
            return  # its pid may be another child's by now
        self.collected = True
        kernel.reap(self.pid)
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def fork(main: Callable[[], int], keep: Iterable[int]) -> Child:
    """Fork a child that runs `main` and exits with what it returns.

    It keeps only the descriptors in `keep` beside 0, 1 and 2; its output goes into `Child.output`. It becomes the
    parent of its orphaned descendants. Call it from the main thread only. Raises OSError when there is no descriptor,
    process or memory left for it; nothing was started.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if pid == 0:
        os.close(read)  # so that there is one to list the others with
        _be_child(main, parent, write, {*keep})
    os.close(write)
    os.set_blocking(read, False)
    return Child(pid, _pidfd(pid), read)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # no descriptor left, while fork still works: fall back to waiting by pid
        return None


def _be_child(main: Callable[[], int], parent: int, output: int, keep: set[int]) -> None:
    """A child's first acts, in an order that matters, then its life. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        kernel.die_with_parent(parent)
        kernel.adopt_orphans()
        os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        close_all_but({0, 1, 2, *keep})
        gc.freeze()  # the parent's objects stay: nothing of theirs is ever finalised here
        random.seed()
        events.unsubscribe_all()
        code = main()
    except BaseException:  # noqa: BLE001  the child's outermost guard: said, then its exit code tells
        traceback.print_exc()
    finally:
        # Not sys.exit: no atexit and no destructor of the parent's may run in the child.
        os._exit(code)


def close_all_but(keep: set[int]) -> None:
    """Close the descriptors themselves; the objects that own them in the parent are not told.

    A `close()` of an inherited database connection would write to the parent's session and end it.
    """
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number not in keep:
            try:
                os.close(number)
            except OSError:
                continue
