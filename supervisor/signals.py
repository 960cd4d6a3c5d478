"""Signals: handlers do nothing at all; the kernel's byte in the wake-up pipe is read by the loop.

A handler that acted would run between any two instructions of the loop, in the middle of a statement too, and one
that raised would leave an unread answer in the database connection. Python writes the signal's number into the pipe
before it calls the (empty) handler, so none is lost while the loop is busy.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

LISTENED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _ignore_here(number: int, frame: object) -> None:
    """The pipe has it."""


class Signals:
    """The signals of this process, as a descriptor to wait for and a list to read."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in LISTENED:
            signal.signal(number, _ignore_here)

    def arrived(self) -> Iterable[signal.Signals]:
        """The signals since the last call, in order."""
        try:
            return [signal.Signals(number) for number in os.read(self.fd, 512)]
        except BlockingIOError:
            return []

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in LISTENED:
            signal.signal(number, signal.SIG_DFL)
        os.close(self.fd)
        os.close(self._write)
