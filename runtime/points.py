"""Named points in the life of a task at which a drill can kill. Without a drill they do nothing.

A drill arms one point for its own pool. The first worker that reaches it says so by creating the drill's file, and
waits there until somebody kills it. Whoever comes later passes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

#: In the order in which an effect task passes them.
POINTS = ("after_claim", "before_call", "during_call", "after_tool", "before_finish", "after_finish")

_armed: tuple[str, Path] | None = None


def arm(point: str, report: Path) -> None:
    """Make this process stop at `point`, if it is the first to create `report`. Raises ValueError for no such point."""
    global _armed
    if point not in POINTS:
        raise ValueError(f"there is no point {point!r}; there are {', '.join(POINTS)}")
    _armed = (point, report)


def reach(point: str) -> None:
    """The task has come to this point."""
    if _armed is not None and _armed[0] == point:
        _wait_to_be_killed(_armed[1])


def _wait_to_be_killed(report: Path) -> None:
    mine = report.with_name(f"{report.name}.{os.getpid()}")
    mine.write_text(f"{os.getpid()}\n")
    try:
        os.link(mine, report)  # whole at once, and only for the first
    except FileExistsError:
        return
    while True:
        signal.pause()
