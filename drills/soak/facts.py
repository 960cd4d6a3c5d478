"""What is known when it is over: the history, the database, the ledgers' books, the logs. Nothing is judged here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ..book import Event as BookLine
from .history import Call
from .plan import SoakKind
from .runs import Run

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
TERMINAL = ("succeeded", "failed", "canceled")


@dataclass(frozen=True, slots=True)
class Task:
    """A task's row. `has_result`: its result is not null in the database; JSON's null is a result."""

    id: str
    kind: str
    key: str | None
    state: str
    attempts: int
    max_attempts: int
    fence: int
    version: int
    cancel_requested: bool
    payload: Any
    has_result: bool
    result: Any
    receipt: Any
    failure_reason: str | None
    cause: str | None
    needs: str | None
    proof: str | None
    effect_key: str | None
    unsettled: bool
    sender_gone: bool
    in_unknowns: bool


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a task outside the normal path. `at` is time.monotonic, within the clock's slack."""

    task: str
    number: int
    at: float
    event: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided. `before`: the task as it stood."""

    task: str
    actor: str
    evidence: str
    decided: str
    before: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One boot of a supervisor. `lease_was_over` when it was ended; None: it has not ended."""

    id: str
    ended_by: str | None
    lease_was_over: bool | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction of this process, as the proxy saw it."""

    pid: int
    application: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Look:
    """One snapshot while it went on: running tasks that no slot names, queued ones that stand nowhere."""

    at: float
    unnamed: tuple[str, ...] = ()
    nowhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Harm:
    """What was done to whom, and when."""

    what: str
    pool: int
    pid: int | None
    start: float
    end: float


@dataclass(frozen=True)
class Facts:
    """All of it. `books` by kind. `slack`: how well the database's clock is known, in seconds.

    `doubts`: why these facts may not be final, or not whole.
    """

    kinds: Mapping[str, SoakKind]
    calls: tuple[Call, ...] = ()
    tasks: Mapping[str, Task] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    decisions: tuple[Decision, ...] = ()
    incarnations: tuple[Incarnation, ...] = ()
    #: Slots that name what they do not hold: slot, task, fence.
    stray_slots: tuple[tuple[str, str, int], ...] = ()
    books: Mapping[str, tuple[BookLine, ...]] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    transactions: tuple[Transaction, ...] = ()
    looks: tuple[Look, ...] = ()
    harm: tuple[Harm, ...] = ()
    slack: float = 0.05
    doubts: tuple[str, ...] = ()

    @cached_property
    def runs_of(self) -> Mapping[str, list[Run]]:
        """Handlers and calls, not lookups, by task, in the order in which they began."""
        return grouped((run for run in self.runs if run.what != "lookup"), lambda run: run.task)

    @cached_property
    def events_of(self) -> Mapping[str, list[Event]]:
        """Events by task, oldest first."""
        return grouped(self.events, lambda event: event.task)

    @cached_property
    def decision_about(self) -> Mapping[str, list[Decision]]:
        """Decisions by task."""
        return grouped(self.decisions, lambda decision: decision.task)

    @cached_property
    def book_of(self) -> Mapping[str, list[BookLine]]:
        """The ledgers' lines by key, in their order."""
        return grouped((line for book in self.books.values() for line in book), lambda line: str(line["key"]))

    @cached_property
    def calls_about(self) -> Mapping[str, list[Call]]:
        """Calls by every task that they name or show, in the order in which they ended."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            for task in {call.task, *(shown.id for shown in call.shown)} - {None}:
                found[str(task)].append(call)
        return found

    def effects(self, key: str) -> list[BookLine]:
        """What was done under this key."""
        return [line for line in self.book_of.get(key, []) if line["event"] == "effect"]

    def posts(self, key: str) -> list[BookLine]:
        """The requests that arrived under this key."""
        return [line for line in self.book_of.get(key, []) if line["event"] == "post"]


def grouped(found: Iterable[V], by: Callable[[V], K]) -> Mapping[K, list[V]]:
    """By this, in their order."""
    groups: dict[K, list[V]] = defaultdict(list)
    for each in found:
        groups[by(each)].append(each)
    return groups
