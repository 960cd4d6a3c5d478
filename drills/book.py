"""The ledger's book: what came and what was done, one JSON line each, on the disk before anything is answered.

A line is an event: `post` (a request arrived), `effect` (money moved), `refused`, `lookup`. The file is the truth: a
ledger that is started on it again goes on where it was, and any other process can count in it at any time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """A book as it was read. Counts are per idempotency key."""

    events: tuple[Event, ...]

    @property
    def posts(self) -> Counter[str]:
        """How many requests arrived."""
        return self._count("post")

    @property
    def effects(self) -> Counter[str]:
        """How often money moved."""
        return self._count("effect")

    @property
    def keys(self) -> set[str]:
        """Every key under which a request arrived."""
        return set(self.posts)

    def lookups(self, key: str) -> list[str]:
        """What the lookups of this key were answered, in their order: found, absent, not offered."""
        return [event["answer"] for event in self.events if event["event"] == "lookup" and event["key"] == key]

    def _count(self, event: str) -> Counter[str]:
        return Counter(found["key"] for found in self.events if found["event"] == event)


def read(file: Path) -> History:
    """What stands in the book now. A line that is still being written is not there yet."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        lines = []
    return History(tuple(json.loads(line) for line in lines))


@dataclass(slots=True)
class Book:
    """The book, open for appending. Every `append` is on the disk when it returns; `lock` makes several of them one."""

    file: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    _fd: int = -1

    def __enter__(self) -> Book:
        self._fd = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, _whole(self.file.read_bytes()))  # what a kill tore off was never answered
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def append(self, event: str, **fields: object) -> Event:
        """Write one line. With the lock held."""
        made: Event = {"event": event, "at": time.time(), **fields}
        os.write(self._fd, json.dumps(made).encode() + b"\n")
        os.fsync(self._fd)
        return made


def of(events: Iterable[Event], event: str) -> list[Event]:
    """Those of this sort."""
    return [found for found in events if found["event"] == event]


def _whole(text: bytes) -> int:
    return text.rfind(b"\n") + 1
