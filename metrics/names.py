"""Tables of names in shared memory: which block of cells belongs to which kind, and which to which provider.

Workers learn the kinds when they import the application; the supervisor and the api children meet kinds of other hosts.
So several processes add names, under a record lock (fcntl(2)) on an anonymous file: the kernel frees it when its
holder is killed. A name is written first and counted afterwards; one that was not counted never was. Readers take no
lock: what is counted never changes.

Why a lock, and not the supervisor as the only writer: a worker would have to wait for it before its first claim, and
the counters of a task must not depend on when the supervisor goes round. Nobody waits for the lock longer than a
moment: whoever holds it may be stopped. Then, and when the table is full, a name is counted under `other`.
"""

from __future__ import annotations

import fcntl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Bytes for one name: 200 characters of at most 4 bytes.
_ROOM = 800
_LENGTH = struct.Struct("<Q")
_ENTRY = _LENGTH.size + _ROOM
#: Seconds that a name is worth waiting for, to who has to do nothing else meanwhile.
PATIENCE = 1.0


class Names:
    """One table of up to `most` names. `place` is the byte of the lock file that stands for it."""

    def __init__(self, memory: memoryview, offset: int, most: int, lock: int, place: int) -> None:
        self._memory = memory
        self._offset = offset
        self._counter = memory[offset : offset + _LENGTH.size].cast("Q")
        self._most = most
        self._lock = lock
        self._place = place
        self._known: dict[str, int] = {}
        #: For how many seconds this process waits for the lock.
        self.patience = PATIENCE
        self._mutex = threading.Lock()  # a record lock does not keep out other threads of its process

    @staticmethod
    def size(most: int) -> int:
        """How many bytes it takes."""
        return _LENGTH.size + most * _ENTRY

    def index(self, name: str) -> int:
        """The name's place, which is added if need be; `most`, the place of all others, when there is none left."""
        found = self._known.get(name)
        if found is not None:
            return found
        short = name.encode("utf-8", "backslashreplace")[:_ROOM].decode("utf-8", "ignore")
        found = self._find(short)
        if found is None:
            found = self._most if self._full else self._add(short)
        if found is None:
            return self._most
        self._known[name] = found
        return found

    def all(self) -> list[str]:
        """Every name, by its place."""
        return [self._read(index) for index in range(self._counter[0])]

    @property
    def _full(self) -> bool:
        return bool(self._counter[0] == self._most)

    def _find(self, name: str) -> int | None:
        names = self.all()
        return names.index(name) if name in names else None

    def _add(self, name: str) -> int | None:
        """The place it gets, or has got from somebody else meanwhile; None when nobody can add now."""
        with self._mutex, self._alone() as alone:
            if not alone:
                return None
            found = self._find(name)
            if found is not None or self._full:
                return found
            place = int(self._counter[0])
            raw = name.encode()
            at = self._at(place)
            self._memory[at : at + _ENTRY] = (_LENGTH.pack(len(raw)) + raw).ljust(_ENTRY, b"\0")
            self._counter[0] = place + 1
            return place

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        until = time.monotonic() + self.patience
        while not self._try_lock():
            if time.monotonic() >= until:
                yield False
                return
            time.sleep(0.001)
        try:
            yield True
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, self._place)

    def _try_lock(self) -> bool:
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place)
        except OSError:
            return False
        return True

    def _read(self, index: int) -> str:
        at = self._at(index)
        (length,) = _LENGTH.unpack_from(self._memory, at)
        return bytes(self._memory[at + _LENGTH.size : at + _LENGTH.size + length]).decode()

    def _at(self, index: int) -> int:
        return self._offset + _LENGTH.size + index * _ENTRY
