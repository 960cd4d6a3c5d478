"""What a supervisor shares with all its children, made before the first fork."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..metrics.memory import MetricsMemory
from ..runtime.blackbox import PoolMemory


def new_eventfd() -> int:
    """A counter in the kernel that wakes whoever waits for it; not inherited by programs that are executed."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


@dataclass(frozen=True, slots=True)
class Shared:
    """`wake` says that there may be work, `report` that a worker has something to tell; `lock` is the pool lock."""

    memory: PoolMemory
    metrics: MetricsMemory
    lock: int
    wake: int = field(default_factory=new_eventfd)
    report: int = field(default_factory=new_eventfd)
