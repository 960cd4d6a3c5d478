"""Clients that never stop: they submit, read what they submitted and look whether the server lives, and keep count.

Half of the submits carry an Idempotency-Key and are repeated until they are accepted, as a careful client does; the
others are sent once. What each call was answered, and how long that took, is kept for the end.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

#: Reads a second.
READS = 5.0

Make = Callable[[int], tuple[str, object]]


@dataclass(frozen=True)
class Call:
    """One call and its answer; status 0: none came."""

    verb: str
    status: int
    began: float
    seconds: float
    problem: str = ""


@dataclass
class Traffic:
    """`rate` submits a second over `clients` threads to a port of this machine. `make(n)` is the n-th kind and payload.

    Beside them one client reads, and one probes.
    """

    port: int
    make: Make
    rate: float = 20.0
    clients: int = 4
    calls: list[Call] = field(default_factory=list)
    #: Tasks that were acknowledged with 202, and those of which the API said that it does not know.
    acknowledged: dict[str, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    #: What a reader was shown of tasks that had ended: state and result.
    ended: dict[str, tuple[str, object]] = field(default_factory=dict)
    #: Of each key, the ids under which it was acknowledged.
    keys: dict[str, set[str]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def flowing(self) -> Iterator[Traffic]:
        """Flowing for the length of a block; at its end every repeated submit has been accepted."""
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(self.clients)]
        self._threads += [threading.Thread(target=target, daemon=True) for target in (self._reader, self._prober)]
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(40)

    def statuses(self, verb: str) -> Counter[int]:
        """How often which status was answered."""
        return Counter(call.status for call in self.calls if call.verb == verb)

    def slowest(self, verb: str) -> float:
        return max((call.seconds for call in self.calls if call.verb == verb), default=0.0)

    def since(self, moment: float, verb: str) -> Counter[int]:
        """How often which status was answered to calls that began after `moment` (time.monotonic)."""
        return Counter(call.status for call in self.calls if call.verb == verb and call.began > moment)

    def check(self, *, longest: float = 6.0, read: Collection[int] = (200, 503)) -> None:
        """Nobody saw anything but an acceptance, an answer, or 503; nobody waited long; it lived all the time."""
        fine = {"POST": (202, 503), "GET": read, "LIVE": (200,)}
        odd = [call for call in self.calls if call.status not in fine[call.verb]]
        assert not odd, odd[:5]
        assert self.statuses("LIVE")[200] > 0
        assert not [call for call in self.calls if call.seconds > longest]
        assert all(len(ids) == 1 for ids in self.keys.values()), "a key was accepted for two tasks"

    def _client(self) -> None:
        pause = self.clients / self.rate
        due = time.monotonic() + random.random() * pause
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + pause, time.monotonic())
            number = self._next()
            self._submit(number, uuid4().hex if number % 2 else None)

    def _submit(self, number: int, key: str | None) -> None:
        kind, payload = self.make(number)
        body = json.dumps({"kind": kind, "payload": payload}).encode()
        while True:
            status, said = self._call("POST", "/tasks", body, key)
            if status == 202:
                self.acknowledged[said["id"]] = kind
                if key is not None:
                    self.keys.setdefault(key, set()).add(said["id"])
            elif "task_id" in said:
                self.doubtful.add(said["task_id"])
            if status == 202 or key is None or status not in (0, 503):
                return
            time.sleep(0.2)

    def _reader(self) -> None:
        while not self._stop.wait(1 / READS):
            known = list(self.acknowledged)
            if known:
                id = random.choice(known[-200:])
                status, said = self._call("GET", f"/tasks/{id}")
                if status == 200 and said["finished_at"]:
                    self.ended[id] = (said["state"], said["result"])

    def _prober(self) -> None:
        while not self._stop.wait(0.1):
            self._call("LIVE", "/livez")

    def _next(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def _call(self, verb: str, path: str, body: bytes | None = None, key: str | None = None) -> tuple[int, Any]:
        began = time.monotonic()
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        status, said = 0, {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET" if verb == "LIVE" else verb, path, body, headers)
            answer = connection.getresponse()
            status, said = answer.status, json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException) as error:
            said = {"detail": repr(error)}
        finally:
            connection.close()
        problem = str(said.get("detail", "")) if status not in (200, 202) else ""
        self.calls.append(Call(verb, status, began, time.monotonic() - began, problem))
        return status, said


def demo_task(number: int) -> tuple[str, object]:
    """A mix of the demo application's kinds: harmless, plain, one that may not run twice, and an effect."""
    tasks: list[tuple[str, object]] = [
        ("noop", {}),
        ("text.analyze", {"text": f"task {number}"}),
        ("sleep", {"seconds": 0.02}),
        ("ledger.transfer", {"account": f"a{number}", "amount": 1}),
        ("ledger.transfer", {"account": f"b{number}", "amount": 2}),
    ]
    return tasks[number % len(tasks)]
