"""Deaths that the kernel has confirmed, and their recovery: committed first, collected afterwards.

A death stays in the list until its recovery is committed, however long the database is away. Until then its zombie is
kept: nobody else can get its pid, and the proof can be shown again. What it left behind is killed before.

A failover to a standby that was not synchronous can lose a recovery that was committed. Then the slot is open again,
with a task that nobody runs, under a lease that we renew. So the last proofs are kept, to be shown once more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ..runtime import events
from ..runtime.blackbox import Box
from ..runtime.db import Connection
from ..runtime.errors import StoreError
from ..runtime.facts import Missed, Recovered
from ..runtime.model import JSON, Cause, ExitProof, Settled
from ..runtime.states import State
from ..runtime.store import recover
from ..runtime.store.account import Counted
from . import descendants
from .child import Child
from .kernel import Exit
from .link import Link

#: Seconds between two attempts while the database does not answer, or refuses.
PAUSE = 0.2
#: Seconds for which one round goes on settling, before the loop sees to the lease and the watchdog again.
LONGEST = 1.0
#: Seconds after which a recovery no longer waits for descendants that will not die.
PATIENCE = 5.0
#: How many deaths are remembered once they are settled.
REMEMBERED = 1000


@dataclass(slots=True)
class Death:
    """One dead worker: who it was, how the kernel says it ended, and what its black box held."""

    child: Child
    slot: UUID
    exit: Exit
    box: Box | None
    cause: Cause = "worker_died"
    counted: Counted = field(default_factory=Counted)
    noticed: float = 0.0
    senders_gone: bool = True
    told: bool = False

    @property
    def proof(self) -> ExitProof:
        evidence: dict[str, JSON] = {
            "core_dumped": self.exit.core_dumped,
            "cpu_seconds": self.exit.cpu_seconds,
            "max_rss_kib": self.exit.max_rss_kib,
            "senders_gone": self.senders_gone,
        }
        phase = self.box.phase.name.lower() if self.box is not None and self.box.slot == self.slot else None
        return ExitProof(self.exit.signal, self.exit.code, self.cause, phase, evidence)


class Recovery:
    """The list of deaths that are not settled yet."""

    def __init__(self) -> None:
        self._open: list[Death] = []
        self._settled: deque[Death] = deque(maxlen=REMEMBERED)
        self._not_before = 0.0
        descendants.children()  # from now on it needs no descriptor

    def __len__(self) -> int:
        return len(self._open)

    @property
    def pids(self) -> set[int]:
        """The zombies that are kept."""
        return {death.child.pid for death in self._open if not death.child.collected}

    def add(self, death: Death) -> None:
        """Note a death. What is left of its process group is killed while the zombie pins the group's number."""
        death.child.kill_group()
        death.noticed = time.monotonic()
        self._open.append(death)

    def settle_again(self, open_slots: Collection[UUID]) -> None:
        """Note anew the deaths of those slots that were settled, and are open: the database has lost it."""
        for death in [death for death in self._settled if death.slot in open_slots]:
            events.emit("the database has lost a recovery; it is committed again", pid=death.child.pid)
            self._settled.remove(death)
            death.noticed = time.monotonic()
            self._open.append(death)

    def settle(self, link: Link, living: Collection[int]) -> bool:
        """Recover and collect every death in the list; what the database does not answer for stays in it. True: some
        of what the dead held is queued again.

        `living` are the pids of our living children: all other children of ours were left behind by the dead.
        """
        back = False
        if not self._open or not self._left_behind_are_gone(living):
            return back
        until = time.monotonic() + LONGEST
        while self._open and self._not_before <= time.monotonic() < until:
            death = self._open[0]
            recovered = self._recover(link, death)
            if recovered is None:
                break
            settled, missed = recovered
            back = back or requeued(settled)
            self._open.pop(0)
            death.child.reap()
            self._settled.append(death)
            _tell(death, settled)
            events.note(missed)
            events.note(Recovered("exit", settled, death.cause, time.monotonic() - death.noticed))
        return back

    def due(self, link: Link) -> list[float]:
        """When (time.monotonic) the next attempt may be made."""
        return [max(self._not_before, link.retry_at, time.monotonic() + 0.01)] if self._open else []

    def _left_behind_are_gone(self, living: Collection[int]) -> bool:
        """Kill what the dead left behind; True when it is gone, or has had its time and the deaths say so."""
        if descendants.kill_strangers({*living, *self.pids}) == 0:
            return True
        overdue = [death for death in self._open if time.monotonic() - death.noticed >= PATIENCE]
        for death in overdue:
            death.senders_gone = False
        return len(overdue) == len(self._open)

    def _recover(self, link: Link, death: Death) -> tuple[list[Settled], Missed] | None:
        def recover_it(connection: Connection) -> tuple[list[Settled], Missed]:
            return recover.recover_and_account(connection, death.slot, death.proof, death.counted)

        try:
            return link.call(recover_it)
        except StoreError as error:
            self._not_before = time.monotonic() + PAUSE
            if not death.told:
                death.told = True
                events.emit("a death is not settled yet", pid=death.child.pid, error=str(error))
            return None


def requeued(settled: Iterable[Settled]) -> bool:
    """Whether some of these tasks are queued again."""
    return any(task.state is State.QUEUED for task in settled)


def tell_settled(event: str, settled: Iterable[Settled], **how: object) -> None:
    """One event for each task that a recovery has settled; `how` says by which proof."""
    for task in settled:
        events.emit(event, task=str(task.id), fence=task.fence, attempt=task.attempts, state=str(task.state), **how)


def _tell(death: Death, settled: list[Settled]) -> None:
    took = round((time.monotonic() - death.noticed) * 1000, 1)
    tell_settled("a dead worker's task was settled", settled, proof="exit", signal=str(death.exit), took_ms=took)
