"""What can be read afterwards: the task's row, its events, and the ledger's book. Nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ..runtime import sql
from ..runtime.db import Connection
from ..runtime.effects import key_for
from .book import History

_FACTS = sql.statement("drill_facts")
_TERMINAL = ("succeeded", "failed", "canceled")


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The database's word, at its time `now`."""

    state: str
    attempts: int
    max_attempts: int
    fence: int
    cancel_requested: bool
    effect_key: str | None
    cause: str | None
    needs: str | None
    first_perform_at: datetime | None
    recovered_at: datetime | None
    proof: str | None
    signal: str | None
    now: datetime

    @property
    def settled(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in _TERMINAL or (self.state == "unknown" and self.needs == "decision")


@dataclass(frozen=True, slots=True)
class Facts:
    """The fact table of one drill. `lookup` is the last lookup's answer, None without one."""

    task_id: str
    window: str
    signal: str
    attempts: int
    effects: int
    post_calls: int
    state: str
    needs: str | None
    fence: int
    cancel_requested: bool
    lookup: str | None
    key_preserved: bool
    proof: str | None
    death_to_recovered_ms: float | None
    canary: str


def of_task(connection: Connection, id: UUID) -> TaskFacts | None:
    """What the database says now; None: there is no such task."""
    rows = connection.run(_FACTS, id=id)
    return TaskFacts(*rows[0]) if rows else None


def collect(
    id: UUID, window: str, signal: str, task: TaskFacts, history: History, killed_at: datetime, canary: str
) -> Facts:
    """The table, once everything has come to rest. `killed_at` is the database's time just before the kill."""
    key = key_for(str(id))
    keys = history.keys | ({task.effect_key} if task.effect_key is not None else set())
    lookups = history.lookups(key)
    took = None if task.recovered_at is None else (task.recovered_at - killed_at).total_seconds() * 1000
    return Facts(
        task_id=str(id),
        window=window,
        signal=signal,
        attempts=task.attempts,
        # The ledger is this drill's alone: under another key it counts as well.
        effects=sum(history.effects.values()),
        post_calls=sum(history.posts.values()),
        state=task.state,
        needs=task.needs,
        fence=task.fence,
        cancel_requested=task.cancel_requested,
        lookup=lookups[-1] if lookups else None,
        key_preserved=keys <= {key},
        proof=task.proof,
        death_to_recovered_ms=None if took is None else round(took, 1),
        canary=canary,
    )
