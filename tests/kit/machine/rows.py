"""The model: the rows that the database must hold, and which of them open transactions have locked.

A verb changes rows in a View. When its transaction commits, the view is merged; when it is rolled back, the view is
forgotten. Nobody else can have changed these rows meanwhile: that is what the locks are for, and what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

TERMINAL = ("succeeded", "failed", "canceled")
Key = tuple[str, Any]


@dataclass(frozen=True)
class Event:
    """A row of events, as far as it is predicted."""

    event: str
    to: str | None
    fence: int
    proof: str | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class Task:
    """A row of tasks. `performed` stands for first_perform_at, `sender` for sender_gone_at."""

    id: UUID
    kind: str
    queue: str
    priority: int
    on_death: str
    max_attempts: int
    key: str | None = None
    state: str = "queued"
    attempts: int = 0
    fence: int = 0
    version: int = 1
    owner: UUID | None = None
    cancel_requested: bool = False
    unsettled: bool = False
    unsettled_earlier: bool = False
    perform_fence: int | None = None
    identity: str | None = None
    performed: str | None = None
    sender: str | None = None
    cause: str | None = None
    needs: str | None = None
    receipt: bool = False
    decided: bool = False
    events: tuple[Event, ...] = ()
    requests: tuple[tuple[UUID, str], ...] = ()

    def now(self, event: Event | None = None, **changes: Any) -> Task:
        """The row after one write."""
        events = self.events if event is None else (*self.events, event)
        return replace(self, version=self.version + 1, events=events, **changes)


@dataclass(frozen=True)
class Ready:
    """A row of ready. `run_at` is learned from the database."""

    id: UUID
    queue: str
    priority: int
    kind: str
    batchable: bool
    run_at: datetime | None = None

    @property
    def position(self) -> tuple[Any, ...]:
        return (self.priority, self.run_at, self.id)


@dataclass(frozen=True)
class Scheduled:
    """A row of scheduled."""

    id: UUID
    due: bool = False


@dataclass(frozen=True)
class Unknown:
    """A row of unknowns. `at` is lookup_at, learned from the database."""

    id: UUID
    kind: str
    needs: str
    due: bool = True
    lookups: int = 0
    at: datetime | None = None


@dataclass(frozen=True)
class SlotRow:
    """A row of slots."""

    id: UUID
    incarnation: UUID
    token: int
    names: frozenset[tuple[UUID, int]] = frozenset()
    ended: bool = False


@dataclass(frozen=True)
class Incarnation:
    """A row of incarnations. `over`: its lease has ended."""

    id: UUID
    lock: UUID
    token: int
    born: int
    over: bool = False
    ended_by: str | None = None
    died: int = 0


class Blocked(Exception):
    """A row that the verb must lock is locked by an open transaction."""


class Refused(Exception):
    """The database refuses the statement with this SQLSTATE; nothing is done."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@dataclass
class Model:
    """All rows, the views of the transactions that are open, and what was written since it was last looked at."""

    rows: dict[Key, Any] = field(default_factory=dict)
    open: list[View] = field(default_factory=list)
    touched: set[Key] = field(default_factory=set)
    pruned: set[UUID] = field(default_factory=set)
    clock: int = 0

    def tick(self) -> int:
        """A time later than every one before."""
        self.clock += 1
        return self.clock

    def all(self, table: str) -> list[Any]:
        return [row for key, row in self.rows.items() if key[0] == table]

    def merge(self, view: View) -> None:
        """The view's transaction has committed."""
        for key, row in view.changed.items():
            if row is None:
                self.rows.pop(key, None)
                self.pruned |= {key[1]} if key[0] == "task" else set()
            else:
                self.rows[key] = row
        self.touched |= set(view.changed)

    def holds(self, key: Key, shared: bool = False) -> bool:
        """Whether an open transaction has locked the row, other than in the same shared way."""
        for view in self.open:
            both_shared = shared and view.locks.get(key, False) and key not in view.changed
            if (key in view.changed or key in view.locks) and not both_shared:
                return True
        return False


@dataclass
class View:
    """The rows as one transaction sees and changes them. `before`: all rows when its statement began to wait."""

    model: Model
    before: dict[Key, Any] | None = None
    changed: dict[Key, Any] = field(default_factory=dict)
    locks: dict[Key, bool] = field(default_factory=dict)

    def get(self, table: str, id: Any) -> Any:
        key = (table, id)
        return self.changed[key] if key in self.changed else self.model.rows.get(key)

    def task(self, id: UUID) -> Task | None:
        found: Task | None = self.get("task", id)
        return found

    def slot(self, id: UUID) -> SlotRow | None:
        found: SlotRow | None = self.get("slot", id)
        return found

    def incarnation(self, id: UUID) -> Incarnation:
        found: Incarnation = self.get("incarnation", id)
        return found

    def put(self, table: str, row: Any) -> None:
        self.changed[(table, row.id)] = row

    def drop(self, table: str, id: Any) -> None:
        self.changed[(table, id)] = None

    def lock(self, table: str, id: Any, shared: bool = False) -> None:
        """Lock the row until the end of the transaction. Raises Blocked."""
        key = (table, id)
        if self.model.holds(key, shared):
            raise Blocked(key)
        self.locks[key] = shared and self.locks.get(key, True)

    def wait_for_change(self, table: str, id: Any) -> None:
        """What a unique index does when somebody is about to write this row. Raises Blocked."""
        if any((table, id) in view.changed for view in self.model.open):
            raise Blocked((table, id))

    def free(self, table: str, id: Any) -> bool:
        """Whether `skip locked` gets the row; then it is locked."""
        key = (table, id)
        if key not in self.model.rows or self.model.holds(key):
            return False
        self.locks[key] = False
        return True

    def ready(self, queue: str) -> list[Ready]:
        """The rows of a queue that the statement's snapshot shows, in their order."""
        rows = [row for key, row in self._snapshot.items() if key[0] == "ready" and row.queue == queue]
        return sorted(rows, key=lambda row: row.position)

    def first_seen(self, table: str, id: Any) -> Any:
        """The row as the statement's snapshot shows it."""
        return self._snapshot.get((table, id))

    @property
    def _snapshot(self) -> dict[Key, Any]:
        return self.model.rows if self.before is None else self.before

    def unknown(self, task: Task) -> None:
        """Insert the task's row into unknowns."""
        assert task.needs is not None
        self.put("unknown", Unknown(task.id, task.kind, task.needs))

    def held(self, names: frozenset[tuple[UUID, int]], owner: UUID) -> Iterator[Task]:
        """The running tasks of this slot, in id order."""
        for id, _ in sorted(names):
            task = self.task(id)
            if task is not None and task.state == "running" and task.owner == owner:
                yield task
