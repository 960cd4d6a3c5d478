"""The history: every call of a client, with when it began and ended, what was asked and what was answered.

An answer that did not come, and a 503 that says it is in doubt, is unknown: it counts as both possible.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

Verb = Literal["submit", "batch", "read", "list", "cancel", "resolve"]
#: The problem that is no answer.
IN_DOUBT = "outcome-in-doubt"


@dataclass(frozen=True, slots=True)
class Asked:
    """One task that was to be submitted, under this idempotency key."""

    key: str
    kind: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """A task as an answer showed it. `version` None: the answer had no ETag."""

    id: str
    kind: str
    state: str
    fence: int
    attempts: int
    max_attempts: int
    cancel_requested: bool
    payload: Any = None
    result: Any = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call. Times are time.monotonic. `status` None: no answer came. `problem`: the name in its `type`.

    `task` is whom a read, a cancel or a decision was about; `decided` and `evidence` belong to a decision.
    """

    number: int
    verb: Verb
    start: float
    end: float
    status: int | None = None
    problem: str | None = None
    task: str | None = None
    asked: tuple[Asked, ...] = ()
    shown: tuple[Shown, ...] = ()
    decided: str | None = None
    evidence: str | None = None

    @property
    def unknown(self) -> bool:
        """Whether it may or may not have done what it asked for."""
        return self.status is None or self.problem == IN_DOUBT


@dataclass(slots=True)
class History:
    """The calls, in a file that is only added to. Used by many threads."""

    file: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _number: int = 0
    _fd: int = -1

    def add(self, verb: Verb, start: float, end: float, **more: Any) -> Call:
        """Note a call that is over."""
        with self._lock:
            self._number += 1
            call = Call(self._number, verb, start, end, **more)
            if self._fd < 0:
                self._fd = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.write(self._fd, msgspec.json.encode(call) + b"\n")
            return call

    def close(self) -> None:
        """The last call has been noted."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(file: Path) -> list[Call]:
    """All calls, in the order in which they ended."""
    decoder = msgspec.json.Decoder(Call)
    with file.open("rb") as lines:
        return [decoder.decode(line) for line in lines]


def shown(task: dict[str, Any], etag: str | None = None) -> Shown:
    """A task of the API."""
    names = ("id", "kind", "state", "fence", "attempts", "max_attempts", "cancel_requested", "payload", "result")
    return Shown(**{name: task[name] for name in names}, version=int(etag.strip('"')) if etag else None)
