"""Writing many cells, and what they stand for, as one act that a SIGKILL cannot tear.

A `Blob` is a record of any length in two copies, written in turn. A `Ledger` uses one as a redo log: first the blob
gets the new values of all cells that change, and the writer's state; then the cells are written. Whoever was killed
between the two is completed by `replay`, which writes the same values again: once, twice, it makes no difference. So
"counted" and "not counted" are never in doubt.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import cache

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_COUNT = struct.Struct("<H")
#: What a cell holds at most. One that is full stays so: it must not go back, and counting must not end the work.
FULL = 2**64 - 1
_CHANGE = struct.Struct("<IQ")


@cache
def _layout(changes: int) -> struct.Struct:
    """How so many changes stand in the redo log: their number, then index and value of each."""
    return struct.Struct("<H" + "IQ" * changes)


class Blob:
    """Up to `room` bytes in shared memory, replaced whole. One writer; any number of readers, in any process."""

    def __init__(self, memory: memoryview, offset: int, room: int) -> None:
        self._memory = memory
        self._offset = offset
        self._room = room
        self._step = _step(room)
        self._sequence = 0
        self.reopen()

    @staticmethod
    def size(room: int) -> int:
        """How much memory it takes, in whole cells."""
        return 2 * _step(room)

    def reopen(self) -> None:
        """Go on after whoever wrote last."""
        newest = self._newest()
        self._sequence = 0 if newest is None else newest[0]

    def write(self, data: bytes) -> bool:
        """Replace the older copy. False: it is longer than there is room, and nothing was written."""
        if len(data) > self._room:
            return False
        self._sequence += 1
        body = _HEAD.pack(self._sequence, len(data)) + data
        whole = body + _CRC.pack(zlib.crc32(body))
        at = self._offset + self._sequence % 2 * self._step
        self._memory[at : at + len(whole)] = whole
        return True

    def read(self) -> bytes | None:
        """The newest whole copy; None when nothing was ever written."""
        newest = self._newest()
        return None if newest is None else newest[1]

    def _newest(self) -> tuple[int, bytes] | None:
        # A living writer can overtake a reader; it cannot do so often.
        for _ in range(10):
            copies = [self._copy(self._offset), self._copy(self._offset + self._step)]
            whole = [copy for copy in copies if copy is not None]
            if whole:
                return max(whole)
        return None

    def _copy(self, at: int) -> tuple[int, bytes] | None:
        sequence, length = _HEAD.unpack_from(self._memory, at)
        if sequence == 0 or length > self._room:
            return None
        end = at + _HEAD.size + length
        body = bytes(self._memory[at:end])
        whole = zlib.crc32(body) == _CRC.unpack_from(self._memory, end)[0]
        return (sequence, body[_HEAD.size :]) if whole else None


def _step(room: int) -> int:
    return (_HEAD.size + room + _CRC.size + 7) // 8 * 8


class Ledger:
    """Cells, and a state of `bytes` that always agrees with them. One writer at a time."""

    def __init__(self, cells: memoryview, blob: Blob) -> None:
        self._cells = cells
        self._blob = blob
        self._state = b""

    def post(self, changes: Mapping[int, int], state: bytes | None = None) -> None:
        """Add to cells and replace the state, both or neither. State None: as it was. A few microseconds."""
        if state is not None:
            self._state = state
        cells = self._cells
        after: list[int] = []
        for index, n in changes.items():
            after += (index, min(cells[index] + n, FULL))
        redo = _layout(len(changes)).pack(len(changes), *after) + self._state
        if not self._blob.write(redo):
            # More than is ever foreseen. Better no state, which only a recovery would miss, than cells without a redo.
            self._state = b""
            for index, n in changes.items():
                self.post({index: n})
            return
        for index, value in zip(after[::2], after[1::2], strict=True):
            cells[index] = value

    def replay(self) -> bytes:
        """Complete what a killed writer has begun, and go on from there. Returns the state; empty without one."""
        self._blob.reopen()
        redo = self._blob.read()
        if redo is None:
            return b""
        (count,) = _COUNT.unpack_from(redo)
        end = _COUNT.size + count * _CHANGE.size
        for index, value in _CHANGE.iter_unpack(redo[_COUNT.size : end]):
            self._cells[index] = value
        self._state = redo[end:]
        return self._state
