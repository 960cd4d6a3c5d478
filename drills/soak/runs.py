"""The log of runs: every handler, call and lookup, noted by the worker before it begins and when it is over.

Each note is one write to a file that is only ever added to, so that a SIGKILL leaves whole lines. Times are
time.monotonic: the same clock in every process of this machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

What = Literal["handler", "perform", "lookup"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `end` None: nobody has seen it end. `how`: returned, or the name of what was raised."""

    task: str
    kind: str
    what: What
    fence: int
    attempt: int
    pid: int
    start: float
    end: float | None = None
    how: str | None = None


class RunLog:
    """The log, open for adding. Opened at the first note: it may be made in another process than it is used in."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._fd = -1
        self._number = 0

    @contextmanager
    def run(self, what: What, task: str, kind: str, fence: int, attempt: int) -> Iterator[None]:
        """Note the run of the block. What the block raises is noted and goes on."""
        self._number += 1
        id = {"pid": os.getpid(), "number": self._number}
        named = {"task": task, "kind": kind, "what": what, "fence": fence, "attempt": attempt}
        self._note(id | named | {"start": time.monotonic()})
        how = "returned"
        try:
            yield
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self._note(id | {"end": time.monotonic(), "how": how})

    def _note(self, line: dict[str, Any]) -> None:
        if self._fd < 0:
            self._fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def read(file: Path) -> list[Run]:
    """All runs, in the order in which they began. A line that a kill has torn is left out."""
    return whole(lines(file))


def whole(found: Iterator[dict[str, Any]]) -> list[Run]:
    """Runs, put together from their two notes."""
    runs: list[Run] = []
    open_ones: dict[tuple[int, int], int] = {}
    for line in found:
        pid, number = line.pop("pid"), line.pop("number")
        if "start" in line:
            open_ones[pid, number] = len(runs)
            runs.append(Run(pid=pid, **line))
        elif (place := open_ones.pop((pid, number), None)) is not None:
            runs[place] = replace(runs[place], end=line["end"], how=line["how"])
    return runs


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of JSON objects; none of a file that is not there."""
    with suppress(FileNotFoundError), file.open("rb") as text:
        for line in text:
            with suppress(ValueError):
                yield json.loads(line)
