"""The person who decides: looks at what is unknown, finds out in the ledger or in the log of runs, and says how it is.

Only what needs a decision, and only after a while: a worker that stands still may wake up and send what it had in hand.
Every second task is left alone, to be judged as it stands in the end.
"""

from __future__ import annotations

import json
import random
import threading
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...runtime.effects import key_for
from .clients import Clients
from .hands import Hand
from .plan import STILL

#: Seconds. So long nobody has stood still who was stopped, and so long no call takes.
OLD_ENOUGH = STILL[1] + 6.0
_LOOK_EVERY = 2.0


@dataclass(slots=True)
class Growing:
    """A file of JSON lines that grows: each line is read once."""

    file: Path
    _at: int = 0

    def new(self) -> list[dict[str, Any]]:
        """The whole lines since the last time."""
        if not self.file.exists():
            return []
        with self.file.open("rb") as text:
            text.seek(self._at)
            found = text.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._at += len(whole)
        lines = []
        for line in whole.splitlines():
            with suppress(ValueError):  # a kill has torn it
                lines.append(json.loads(line))
        return lines


@dataclass(slots=True)
class Person:
    """One person, in a thread. `books` are the ledgers' files by kind, `runs` the log of runs."""

    clients: Clients
    books: Mapping[str, Path]
    runs: Path
    dice: random.Random
    stopping: threading.Event = field(default_factory=threading.Event)
    _done: set[str] = field(default_factory=set)
    _began: dict[tuple[int, int], str] = field(default_factory=dict)
    _files: list[Growing] = field(default_factory=list)
    _hand: Hand | None = None

    def start(self) -> None:
        """Begin."""
        self._files = [Growing(file) for file in [self.runs, *self.books.values()]]
        self._hand = Hand("person", self._work, self.clients.doubts)
        self._hand.start()

    def stop(self, seconds: float) -> bool:
        """Whether it has come to its end in time."""
        self.stopping.set()
        assert self._hand is not None
        self._hand.join(seconds)
        return not self._hand.is_alive()

    def _work(self) -> None:
        while not self.stopping.wait(_LOOK_EVERY):
            kind = self.dice.choice(list(self.clients.plan.kinds))
            answer = self.clients.call(self.dice, "GET", f"/tasks?state=unknown&kind={kind}&limit=100")
            self.clients.note("list", answer)
            if answer.status != 200:
                continue
            due = [task for task in answer.body["tasks"] if self._is_due(task)]
            if due:
                self._look_up()
            for task in due[:10]:
                self._decide(task["id"])

    def _is_due(self, task: dict[str, Any]) -> bool:
        since = datetime.fromisoformat(task["unknown"]["since"])
        old = (datetime.now(UTC) - since).total_seconds() > OLD_ENOUGH
        return old and task["unknown"]["needs"] == "decision" and not self._left_alone(task["id"])

    def _left_alone(self, task: str) -> bool:
        return zlib.crc32(f"{self.clients.plan.seed} {task}".encode()) % 2 == 0

    def _look_up(self) -> None:
        """What was done, as the files have it: effects by their keys, and handlers that returned, by their tasks."""
        runs, *books = self._files
        for line in runs.new():
            if line.get("what") == "handler":
                self._began[line["pid"], line["number"]] = line["task"]
            elif line.get("how") == "returned" and (line["pid"], line["number"]) in self._began:
                self._done.add(self._began[line["pid"], line["number"]])
        for book in books:
            self._done.update(line["key"] for line in book.new() if line["event"] == "effect")

    def _decide(self, task: str) -> None:
        """Read it, and decide about what was read; the same decision again where the answer is unknown."""
        read = self.clients.call(self.dice, "GET", f"/tasks/{task}")
        self.clients.note("read", read, task=task)
        if read.status != 200 or read.body["unknown"] is None or read.etag is None:
            return
        done = task in self._done or key_for(task) in self._done
        decided = "succeeded" if done else "failed"
        where = "the ledger" if read.body["effect"] else "the log of runs"
        evidence = f"{where} says {'done' if done else 'not done'}: {task}"
        body: dict[str, Any] = {"state": decided, "evidence": evidence}
        if done:
            body["result"] = {"decided": True}
        key = f"{task}-{read.etag.strip(chr(34))}"
        for _ in range(5):
            named = {"If_Match": read.etag, "Idempotency_Key": key, "Deadsure_Actor": "soak"}
            answer = self.clients.call(self.dice, "POST", f"/tasks/{task}/resolution", body, **named)
            call = self.clients.note("resolve", answer, task=task, decided=decided, evidence=evidence)
            if call.status not in (None, 503):
                return
