"""What children print, passed on without ever waiting for our own reader.

A pipe that nobody reads holds 64 KiB; then every writer blocks. The children write into pipes that the supervisor
always empties, and what the supervisor cannot pass on at once is dropped and counted.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from . import told

#: A pipe that polls writable takes this many bytes at once without blocking (PIPE_BUF).
_ATOMIC = 4096


def _dropped(lines: int) -> str:
    return f"({lines} lines were dropped here: nobody read them)"


class Output:
    """The supervisor's own output. `dropped` counts the lines that nobody took, and `notice` is the line about them."""

    def __init__(self, fd: int = 2, notice: Callable[[int], str] = _dropped) -> None:
        self._fd = fd
        self._notice = notice
        self._torn = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.dropped = 0
        self._untold = 0

    def write(self, line: str) -> None:
        """Print a line, or drop it if the reader is not keeping up. Never blocks, never raises for a closed pipe."""
        if self._untold and self._print(self._notice(self._untold)):
            self._untold = 0
        if not self._print(line):
            self.dropped += 1
            self._untold += 1

    def _print(self, line: str) -> bool:
        data = line.rstrip("\n").encode("utf-8", "backslashreplace") + b"\n"
        if self._torn:
            data = b"\n" + data
        for start in range(0, len(data), _ATOMIC):
            if not self._writable() or not self._put(data[start : start + _ATOMIC]):
                self._torn = self._torn or start > 0  # a part of a line stands there: the next begins a new one
                return False
        self._torn = False
        return True

    def _writable(self) -> bool:
        return any(event & select.POLLOUT for _, event in self._poll.poll(0))

    def _put(self, data: bytes) -> bool:
        try:
            os.write(self._fd, data)
        except OSError:
            return False
        return True


class Relay:
    """One child's output, cut into lines and marked with where it came from."""

    def __init__(self, fd: int, process: str) -> None:
        self.fd = fd
        self._process = process
        self._rest = b""

    def drain(self) -> bool:
        """Pass on what is there. False: the pipe has ended, nobody can write to it any more."""
        for _ in range(16):
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                self._flush()
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._say(line)
            if len(self._rest) > 65536:
                self._flush()
        return True

    def close(self) -> None:
        """Pass on what is left and let go of the pipe, also when a descendant of the child still holds it."""
        self.drain()
        self._flush()
        os.close(self.fd)

    def _flush(self) -> None:
        if self._rest:
            self._say(self._rest)
            self._rest = b""

    def _say(self, line: bytes) -> None:
        told.pass_on(line, self._process)
