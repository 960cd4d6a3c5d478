"""Doing the harm: signals to processes of the soak's own, its ledgers and its database brought down and up again.

Nobody is signalled by a pid alone: nemesis.py holds a pidfd first and asks who its parent is then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .. import nemesis
from ..ledger_process import LedgerProcess
from .facts import Harm
from .plan import GROWN, KILLS, Card
from .pools import Role, SoakPool, age

#: Seconds for which a victim is waited for, where nobody lives at the moment.
_PATIENCE = 20.0
_LOOK_EVERY = 0.01


@dataclass(slots=True)
class Still:
    """Processes that stand still until `until` (time.monotonic). `victims`: a pidfd for each, which pins it."""

    victims: list[int]
    until: float

    def wake(self) -> None:
        """Let them go on; who has died meanwhile stays dead."""
        for victim in self.victims:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(victim, signal.SIGCONT)
            os.close(victim)
        self.victims = []


@dataclass(slots=True)
class Nemesis:
    """Whoever does it. For the main thread: what it starts dies with the thread that started it.

    `crash` brings the database down and up again; None where it is not ours.
    """

    pools: Sequence[SoakPool]
    ledgers: Mapping[str, LedgerProcess]
    crash: Callable[[], None] | None
    done: list[Harm] = field(default_factory=list)
    kills: int = 0
    _still: Still | None = None

    def strike(self, card: Card) -> None:
        """Do this. Nobody there to be hit: nothing is done."""
        time.sleep(card.pause)
        self.wake_if_due()
        began = time.monotonic()
        pool = self.pools[int(card.pool * len(self.pools))]
        pid = self._carry_out(card, pool)
        if pid is not None:
            self.kills += card.what in KILLS
            self.done.append(Harm(card.what, pool.number, pid or None, began, time.monotonic()))

    def wake_if_due(self) -> None:
        """Let those go on who have stood still long enough."""
        if self._still is not None and time.monotonic() >= self._still.until:
            self._still.wake()
            self._still = None

    def wake(self) -> None:
        """Let everybody go on."""
        if self._still is not None:
            self._still.wake()
            self._still = None

    def _carry_out(self, card: Card, pool: SoakPool) -> int | None:
        """Whom it has hit; 0: nobody in particular; None: nobody was there."""
        match card.what:
            case "worker" | "api":
                return self._kill(card, pool)
            case "supervisor":
                return _kill_supervisor(pool)
            case "stopped worker" | "stopped supervisor" | "stopped pool":
                return self._stop(card, pool)
            case "ledger":
                ledger = list(self.ledgers.values())[int(card.victim * len(self.ledgers))]
                ledger.kill()
                ledger.start()
                return 0
            case "database":
                assert self.crash is not None
                self.crash()
                return 0

    def _kill(self, card: Card, pool: SoakPool) -> int | None:
        role: Role = "worker" if card.what == "worker" else "api"
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            self.wake_if_due()
            # Where that pool has nobody at the moment, its neighbour has.
            for one in (pool, *self.pools):
                living = [pid for pid in one.living(role) if card.young or _grown(pid)]
                if living:
                    victim = living[int(card.victim * len(living))]
                    with suppress(nemesis.NotOurs):
                        if nemesis.strike(one.pid, victim, signal.SIGKILL):
                            return victim
            time.sleep(_LOOK_EVERY)
        return None

    def _stop(self, card: Card, pool: SoakPool) -> int | None:
        """One at a time: who stands still already is waited for."""
        while self._still is not None:
            time.sleep(max(0.0, self._still.until - time.monotonic()))
            self.wake_if_due()
        workers = pool.living("worker")
        match card.what:
            case "stopped supervisor":
                chosen = [pool.pid]
            case "stopped pool":
                chosen = [pool.pid, *workers, *pool.living("api")]
            case _:
                chosen = [workers[int(card.victim * len(workers))]] if workers else []
        self._still = Still([], time.monotonic() + card.seconds)
        for pid in chosen:
            victim = _stopped(pool, pid)
            if victim is not None:
                self._still.victims.append(victim)
        return chosen[0] if chosen else None


def _grown(pid: int) -> bool:
    with suppress(OSError):
        return age(pid) > GROWN
    return False


def _kill_supervisor(pool: SoakPool) -> int:
    assert pool.process is not None
    pid = pool.pid
    pool.process.kill()
    pool.process.wait()
    pool.start()
    return pid


def _stopped(pool: SoakPool, pid: int) -> int | None:
    """A pidfd of the process, which stands still now; None where it has gone."""
    if pid == pool.pid:
        victim = os.pidfd_open(pid)  # our own child, not collected: nobody else can have its pid
        signal.pidfd_send_signal(victim, signal.SIGSTOP)
        return victim
    try:
        victim = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with suppress(nemesis.NotOurs):
        if nemesis.strike(pool.pid, pid, signal.SIGSTOP):
            return victim
    os.close(victim)
    return None
