"""Reading everything at the end, after the pools have ended; and looking in while it goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...runtime import db, sql
from ...runtime.db import Connection, Settings
from ...runtime.errors import StoreError
from .. import book
from . import history, runs
from .facts import Decision, Event, Facts, Harm, Incarnation, Look, Task, Transaction
from .hands import Hand
from .plan import SoakPlan

_LOOK = sql.statement("soak_look")
_OPEN = sql.statement("soak_open")
_TASKS = sql.statement("soak_tasks")
_EVENTS = sql.statement("soak_events")
_DECISIONS = sql.statement("soak_decisions")
_INCARNATIONS = sql.statement("soak_incarnations")
_SLOTS = sql.statement("soak_slots")
_CLOCK = sql.statement("soak_clock")

#: Seconds between two looks.
LOOK_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Clock:
    """What must be added to the database's time to get time.monotonic, and how wrong that may be; in seconds."""

    offset: float
    error: float

    @classmethod
    def measured(cls, connection: Connection) -> Clock:
        """As it is now."""
        before = time.monotonic()
        there = float(connection.run(_CLOCK)[0][0])
        after = time.monotonic()
        return cls((before + after) / 2 - there, (after - before) / 2)

    def until(self, later: Clock) -> Clock:
        """As it was between the two: the clocks may have drifted."""
        drift = abs(later.offset - self.offset)
        return Clock((self.offset + later.offset) / 2, max(self.error, later.error) + drift)


@dataclass(slots=True)
class Watcher:
    """Looks into the database again and again, in a thread with a session of its own."""

    database: Settings
    plan: SoakPlan
    doubts: list[str]
    backlog: int = 0
    looks: list[Look] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _hand: Hand | None = None

    def start(self) -> None:
        """Begin."""
        self._hand = Hand("watcher", self._work, self.doubts)
        self._hand.start()

    def stop(self) -> None:
        """No more looks."""
        self._stopping.set()
        if self._hand is not None:
            self._hand.join()

    def _work(self) -> None:
        connection: Connection | None = None
        while not self._stopping.wait(LOOK_EVERY):
            try:
                if connection is None or not connection.usable:
                    connection = db.connect(self.database, f"deadsure {self.plan.name}")
                self._look(connection)
            except StoreError:
                continue  # the database has been crashed
        if connection is not None:
            connection.close()

    def _look(self, connection: Connection) -> None:
        rows = connection.run(_LOOK, queue=self.plan.name, kinds=list(self.plan.kinds))
        waiting, unnamed, nowhere = rows[0]
        self.backlog = waiting
        self.looks.append(Look(time.monotonic(), tuple(unnamed), tuple(nowhere)))


def still_open(connection: Connection, plan: SoakPlan) -> int:
    """How many tasks have not come to rest."""
    return int(connection.run(_OPEN, kinds=list(plan.kinds))[0][0])


def gather(
    connection: Connection,
    plan: SoakPlan,
    folder: Path,
    books: Mapping[str, Path],
    clock: Clock,
    looks: Sequence[Look],
    harm: Sequence[Harm],
    doubts: Sequence[str],
) -> Facts:
    """Everything, once all has come to rest and the pools have ended."""
    kinds = list(plan.kinds)
    rows = connection.run(_TASKS, kinds=kinds)
    events = connection.run(_EVENTS, kinds=kinds)
    return Facts(
        kinds=plan.kinds,
        calls=tuple(history.read(folder / "history.jsonl")),
        tasks={row[0]: _task(row) for row in rows},
        events=tuple(Event(t, n, at + clock.offset, what, json.loads(detail)) for t, n, at, what, detail in events),
        decisions=tuple(_decision(row) for row in connection.run(_DECISIONS, kinds=kinds)),
        incarnations=tuple(Incarnation(*row) for row in connection.run(_INCARNATIONS, pool=plan.name)),
        stray_slots=tuple((slot, task, fence) for slot, task, fence in connection.run(_SLOTS, pool=plan.name)),
        books={kind: book.read(file).events for kind, file in books.items()},
        runs=tuple(runs.read(folder / "runs.jsonl")),
        transactions=tuple(_transactions(folder / "proxy.jsonl")),
        looks=tuple(looks),
        harm=tuple(harm),
        slack=clock.error,
        doubts=tuple(doubts),
    )


def faults(folder: Path) -> list[dict[str, Any]]:
    """The faults of the proxy."""
    return [line for line in runs.lines(folder / "proxy.jsonl") if "fault" in line]


def _task(row: Sequence[Any]) -> Task:
    fields = list(row)
    for place in (9, 11, 12):  # payload, result, receipt
        fields[place] = None if fields[place] is None else json.loads(fields[place])
    return Task(*fields)


def _decision(row: Sequence[Any]) -> Decision:
    task, actor, evidence, decided, before = row
    return Decision(task, actor, evidence, decided, json.loads(before))


def _transactions(file: Path) -> list[Transaction]:
    found = (line for line in runs.lines(file) if "fault" not in line)
    return [Transaction(line["pid"], line["application"], line["start"], line["end"]) for line in found]
