"""Clients: they submit, repeat what they know nothing of, read, and cancel. Each call goes into the history."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from . import wire
from .hands import Hand
from .history import Asked, Call, History, Verb, shown
from .plan import SoakPlan
from .wire import Answer

#: Seconds between two calls of one client, on average, and before an unknown answer is asked for again.
PAUSE = 0.12
AGAIN = 0.3
CLIENTS = 6
#: While so many tasks wait nobody submits.
ENOUGH = 60
_VERBS: tuple[str, ...] = ("submit",) * 10 + ("batch",) * 3 + ("read",) * 4 + ("cancel",) * 3


@dataclass(slots=True)
class Clients:
    """All clients, with what they know of each other: the tasks that there are."""

    plan: SoakPlan
    ports: Sequence[int]
    history: History
    backlog: Callable[[], int]
    doubts: list[str]
    stopping: threading.Event = field(default_factory=threading.Event)
    _known: deque[str] = field(default_factory=lambda: deque(maxlen=400))
    _numbers: Any = field(default_factory=lambda: count(1))
    _hands: list[Hand] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        for number in range(CLIENTS):
            client = Client(self, self.plan.dice(f"client {number}"))
            self._hands.append(Hand(f"client {number}", client.work, self.doubts))
            self._hands[-1].start()

    def stop(self, seconds: float) -> bool:
        """No new submits; whether every client has come to its end in time."""
        self.stopping.set()
        until = time.monotonic() + seconds
        for hand in self._hands:
            hand.join(max(0.0, until - time.monotonic()))
        return not any(hand.is_alive() for hand in self._hands)

    def call(self, dice: random.Random, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One call to one of the pools."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return wire.call(dice.choice(self.ports), method, path, body, named)

    def note(self, verb: Verb, answer: Answer, **more: Any) -> Call:
        """Into the history, with the tasks that the answer showed."""
        found = _tasks(answer)
        self._known.extend(task["id"] for task in found if verb in ("submit", "batch"))
        return self.history.add(
            verb,
            answer.start,
            answer.end,
            status=answer.status,
            problem=answer.problem,
            shown=tuple(shown(task, answer.etag) for task in found),
            **more,
        )

    def number(self) -> int:
        """One that nobody had before."""
        made: int = next(self._numbers)
        return made

    def one_of(self, dice: random.Random) -> str | None:
        """A task that exists: most often a young one."""
        known = list(self._known)
        return known[-1 - int(len(known) * dice.random() ** 3)] if known else None


@dataclass(slots=True)
class Client:
    """One of them: one thread."""

    all: Clients
    dice: random.Random

    def work(self) -> None:
        """Until told to stop; what is not known by then is asked for until it is."""
        while not self.all.stopping.wait(self.dice.expovariate(1 / PAUSE)):
            match self.dice.choice(_VERBS):
                case "submit":
                    self._submit()
                case "batch":
                    self._batch()
                case "read":
                    self._read()
                case _:
                    self._cancel()

    def _submit(self) -> None:
        if self.all.backlog() >= ENOUGH:
            return
        asked, body = self._task()
        self._until_known("submit", "/tasks", body, (asked,), idempotency_key=asked.key)

    def _batch(self) -> None:
        if self.all.backlog() >= ENOUGH:
            return
        tasks = [self._task() for _ in range(self.dice.randrange(2, 9))]
        bodies = [body | {"idempotency_key": asked.key} for asked, body in tasks]
        self._until_known("batch", "/tasks/batch", {"tasks": bodies}, tuple(asked for asked, _ in tasks))

    def _until_known(self, verb: Verb, path: str, body: object, asked: tuple[Asked, ...], **headers: str) -> None:
        """Send it; and again, the same, until it is accepted. Some give up at once, and some ask once too often."""
        gives_up = self.dice.random() < 0.1
        doubts = self.dice.random() < 0.05
        while True:
            answer = self.all.call(self.dice, "POST", path, body, **headers)
            call = self.all.note(verb, answer, asked=asked)
            known = not call.unknown and call.status != 503
            if gives_up or (known and not doubts):
                return
            doubts = doubts and not known
            time.sleep(AGAIN * self.dice.uniform(0.5, 1.5))

    def _task(self) -> tuple[Asked, dict[str, Any]]:
        number = self.all.number()
        kind = self.dice.choice(list(self.all.plan.kinds))
        if self.all.plan.kinds[kind].mode is None:
            long = self.dice.random() < 0.2
            payload: dict[str, Any] = {
                "seconds": round(self.dice.uniform(0.5, 1.5) if long else self.dice.uniform(0.0, 0.3), 3),
                "heeds": self.dice.random() < 0.5,
                "raises": self.dice.random() < 0.05,
            }
        else:
            payload = {"account": f"account-{number}", "amount": self.dice.randrange(1, 1000)}
        asked = Asked(f"{self.all.plan.name}-{number}", kind, payload)
        body: dict[str, Any] = {"kind": kind, "payload": payload}
        if self.dice.random() < 0.08:
            at = datetime.now(UTC) + timedelta(seconds=self.dice.uniform(0.2, 3.0))
            body["run_at"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return asked, body

    def _read(self) -> None:
        if (task := self.all.one_of(self.dice)) is not None:
            self.all.note("read", self.all.call(self.dice, "GET", f"/tasks/{task}"), task=task)

    def _cancel(self) -> None:
        if (task := self.all.one_of(self.dice)) is None:
            return
        for _ in range(3):
            call = self.all.note("cancel", self.all.call(self.dice, "POST", f"/tasks/{task}/cancel"), task=task)
            if call.status not in (None, 503) or self.dice.random() < 0.5:
                return


def _tasks(answer: Answer) -> list[dict[str, Any]]:
    """The tasks in an answer: one, or many."""
    if answer.status not in (200, 202):
        return []
    found: list[dict[str, Any]] = answer.body.get("tasks", [answer.body])
    return found
