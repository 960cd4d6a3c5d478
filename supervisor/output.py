"""What children print, passed on without ever waiting for our own reader.

A pipe that nobody reads holds 64 KiB; then every writer blocks. The children write into pipes that the supervisor
always empties, and what the supervisor cannot pass on at once is dropped and counted.
"""

from __future__ import annotations

import os
import select

#: A pipe that polls writable takes this many bytes at once without blocking (PIPE_BUF).
_ATOMIC = 4096


class Output:
    """The supervisor's own output. `dropped` counts the lines that nobody took."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.dropped = 0
        self._untold = 0

    def write(self, line: str) -> None:
        """Print a line, or drop it if the reader is not keeping up. Never blocks, never raises for a closed pipe."""
        if self._untold and self._print(f"({self._untold} lines were dropped here: nobody read them)"):
            self._untold = 0
        if not self._print(line):
            self.dropped += 1
            self._untold += 1

    def _print(self, line: str) -> bool:
        data = line.rstrip("\n").encode("utf-8", "backslashreplace") + b"\n"
        pieces = (data[start : start + _ATOMIC] for start in range(0, len(data), _ATOMIC))
        return all(self._writable() and self._put(piece) for piece in pieces)

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

    def __init__(self, fd: int, label: str, output: Output) -> None:
        self.fd = fd
        self._label = label
        self._output = output
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
        self._output.write(f"{self._label} | {line.decode('utf-8', 'backslashreplace')}")
