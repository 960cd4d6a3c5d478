"""Records in shared memory that a SIGKILL cannot tear.

Two copies are written in turn, each with a sequence number and a CRC: whoever is killed in the middle of one leaves
the other whole. One writer per record; any number of readers, in any process.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import Any

_CRC = struct.Struct("<I")


class Record:
    """One record at a fixed place. `layout` is a `struct` format without byte order."""

    def __init__(self, memory: mmap.mmap, offset: int, layout: str) -> None:
        self._memory = memory
        self._body = struct.Struct("<Q" + layout)
        self._offset = offset
        self._step = self._body.size + _CRC.size
        newest = self._newest()
        self._sequence = 0 if newest is None else int(newest[0])

    @property
    def size(self) -> int:
        """Bytes that both copies take."""
        return 2 * self._step

    def write(self, *values: Any) -> None:
        """Replace the older copy. About a microsecond."""
        self._sequence += 1
        body = self._body.pack(self._sequence, *values)
        at = self._offset + self._sequence % 2 * self._step
        self._memory[at : at + self._step] = body + _CRC.pack(zlib.crc32(body))

    def read(self) -> tuple[Any, ...] | None:
        """The newest whole copy; None when nothing was ever written."""
        newest = self._newest()
        return None if newest is None else newest[1:]

    def _newest(self) -> tuple[Any, ...] | None:
        # A living writer can overtake a reader; it cannot do so often.
        for _ in range(10):
            copies = [copy for copy in (self._copy(0), self._copy(1)) if copy is not None]
            if copies:
                return max(copies)
            if not any(self._memory[self._offset : self._offset + self.size]):
                return None
        return None

    def _copy(self, index: int) -> tuple[Any, ...] | None:
        at = self._offset + index * self._step
        raw = self._memory[at : at + self._step]
        body, crc = raw[: self._body.size], raw[self._body.size :]
        return self._body.unpack(body) if _CRC.pack(zlib.crc32(body)) == crc and any(body) else None
