"""Deaths that the kernel has confirmed, and their recovery: committed first, reaped afterwards.

A death stays in the list until its recovery is committed, however long the database is away. Until then its zombie is
kept: nobody else can get its pid, and the proof can be shown again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID

from ..runtime import events
from ..runtime.blackbox import Box, Phase
from ..runtime.db import Connection
from ..runtime.errors import StoreError
from ..runtime.model import Cause, ExitProof, Settled
from ..runtime.store import recover
from .child import Child
from .kernel import Exit
from .link import Link

#: Seconds between two attempts while the database does not answer, or refuses.
PAUSE = 0.2


@dataclass(slots=True)
class Death:
    """One dead worker: who it was, how the kernel says it ended, and what its black box held."""

    child: Child
    slot: UUID
    exit: Exit
    box: Box | None
    cause: Cause = "worker_died"
    noticed: float = 0.0
    told: bool = False

    @property
    def proof(self) -> ExitProof:
        evidence = {
            "core_dumped": self.exit.core_dumped,
            "cpu_seconds": self.exit.cpu_seconds,
            "max_rss_kib": self.exit.max_rss_kib,
        }
        phase = self.box.phase.name.lower() if self.box is not None and self.box.slot == self.slot else None
        return ExitProof(self.exit.signal, self.exit.code, self.cause, phase, dict(evidence))

    @property
    def held_something(self) -> bool:
        """Whether the black box says it may have held a task; only for the log."""
        return self.box is not None and self.box.phase in (Phase.HANDLING, Phase.FINISHING)


class Recovery:
    """The list of deaths that are not settled yet."""

    def __init__(self) -> None:
        self._open: list[Death] = []
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, death: Death) -> None:
        """Note a death. What is left of its process group is killed while the zombie pins the group's number."""
        death.child.kill_group()
        death.noticed = time.monotonic()
        self._open.append(death)

    def settle(self, link: Link) -> None:
        """Recover and reap every death in the list; what the database does not answer for stays in it."""
        while self._open and time.monotonic() >= self._not_before:
            death = self._open[0]
            try:
                settled = link.call(lambda connection, death=death: _recover(connection, death))  # type: ignore[misc]
            except StoreError as error:
                self._not_before = time.monotonic() + PAUSE
                if not death.told:
                    death.told = True
                    events.emit("a death is not settled yet", pid=death.child.pid, error=str(error))
                return
            self._open.pop(0)
            death.child.reap()
            _tell(death, settled)


def _recover(connection: Connection, death: Death) -> list[Settled]:
    return recover.recover_worker(connection, death.slot, death.proof)


def _tell(death: Death, settled: list[Settled]) -> None:
    took = round((time.monotonic() - death.noticed) * 1000, 1)
    for task in settled:
        events.emit(
            "a dead worker's task was settled",
            task=str(task.id),
            fence=task.fence,
            attempt=task.attempts,
            state=str(task.state),
            proof="exit",
            signal=str(death.exit),
            took_ms=took,
        )
