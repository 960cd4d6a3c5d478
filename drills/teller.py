"""What happens to a request at the sandbox ledger, without HTTP: done, shown, refused, or failed on purpose.

Every decision about a key is one step under the book's lock, so that it dedups atomically.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any
from uuid import uuid4

from ..runtime.effects import Intent
from .book import Book, Event, of, read
from .modes import Behaviour

#: For how long an answer is kept at most, whoever asks for it: seconds.
_LONGEST = 60.0
_FAULTS = ("close", "503 before", "hang", "503 after", None)


@dataclass(frozen=True, slots=True)
class Request:
    """A POST, as far as it matters here. `not_after` is seconds since the epoch."""

    key: str
    body: bytes
    fence: int | None = None
    not_after: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered, and after how many seconds. `fault`: closed or hanging instead."""

    status: int
    body: Any
    headers: dict[str, str] | None = None
    fault: str | None = None
    after: float = 0.0


class Teller:
    """Answers requests. May be called from many threads."""

    def __init__(self, book: Book, behaviour: Behaviour, dice: Random) -> None:
        self._book = book
        self._dice = dice
        self._behaviour = behaviour
        events = read(book.file).events
        self._effects = of(events, "effect")
        self._fences: dict[str, int] = {}
        for post in of(events, "post"):
            self._fences[post["key"]] = max(self._fences.get(post["key"], 0), post["fence"] or 0)
        self._turn = count()

    def post(self, request: Request) -> Reply:
        """Move the money, or show that it was moved, or refuse. The arrival is noted before anything else."""
        fault = self._fault()
        with self._book.lock:
            digest = _digest(request.body)
            self._book.append("post", key=request.key, fence=request.fence, not_after=request.not_after, request=digest)
            effect = self._remembered(request.key) if self._behaviour.dedups else None
            refusal = self._refusal(request, known=effect is not None)
            if refusal is not None:
                self._book.append("refused", key=request.key, status=refusal.status)
                return refusal
            if fault == "503 before":
                return Reply(503, {"error": "not now"})
            effect = effect or self._do(request)
        if effect["request"] != digest:
            return Reply(422, {"error": "this key was used for another transfer"})
        if fault == "503 after":
            return Reply(503, {"error": "not now"})
        return Reply(201, self._receipt(effect), fault=fault, after=_after(effect["fields"]))

    def get(self, key: str) -> Reply:
        """Whether it was done, as far as this ledger can say."""
        fault = self._fault()
        with self._book.lock:
            effect = self._remembered(key) if self._behaviour.lookup else None
            said = "not offered" if not self._behaviour.lookup else "absent" if effect is None else "found"
            self._book.append("lookup", key=key, answer=said if fault is None else "unavailable")
        if said == "not offered":
            return Reply(404, {"error": "no such page"})
        if fault is not None:
            return Reply(503, {"error": "not now"}, fault=fault)
        if effect is None:
            return Reply(404, {"error": "no such transfer"}, {"Deadsure-Absent": "authoritative"})
        return Reply(200, self._receipt(effect))

    def page(self) -> Reply:
        """The last transfers, the newest first."""
        with self._book.lock:
            return Reply(200, {"transfers": [self._receipt(effect) for effect in self._effects[:-101:-1]]})

    def _fault(self) -> str | None:
        if self._behaviour.flaky:
            return _FAULTS[next(self._turn) % len(_FAULTS)]
        return self._dice.choice(_FAULTS[:-1]) if self._dice.random() < self._behaviour.faults else None

    def _refusal(self, request: Request, known: bool) -> Reply | None:
        """Why this is not done. What was done is shown to everybody: a database that lost claims begins its fences
        anew, and must learn it all the same.
        """
        try:
            _intent(request.body)
        except ValueError as error:
            return Reply(422, {"error": str(error)})
        if not self._behaviour.checks:
            return None
        highest = self._fences[request.key] = max(self._fences.get(request.key, 0), request.fence or 0)
        if known:
            return None
        if request.fence is not None and request.fence < highest:
            return Reply(412, {"error": "a later attempt has been here"})
        if request.not_after is not None and time.time() > request.not_after:
            return Reply(412, {"error": "this came too late"})
        return None

    def _remembered(self, key: str) -> Event | None:
        since = time.time() - self._behaviour.retention if self._behaviour.retention is not None else 0.0
        return next((effect for effect in self._effects if effect["key"] == key and effect["at"] >= since), None)

    def _do(self, request: Request) -> Event:
        intent = _intent(request.body)
        effect = self._book.append(
            "effect",
            key=request.key,
            receipt_id=f"r-{uuid4().hex}",
            fingerprint=intent.fingerprint,
            fields=dict(intent),
            request=_digest(request.body),
        )
        self._effects.append(effect)
        return effect

    def _receipt(self, effect: Event) -> dict[str, object]:
        fingerprint = Intent(of="somebody else").fingerprint if self._behaviour.lies else effect["fingerprint"]
        names = ("receipt_id", "key", "fields")
        return {name: effect[name] for name in names} | {"fingerprint": fingerprint}


def _intent(body: bytes) -> Intent:
    try:
        fields = json.loads(body)
    except ValueError:
        raise ValueError("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("the body is not an object")
    return Intent(fields)


def _after(fields: dict[str, Any]) -> float:
    """For how long the caller wants the answer to be kept."""
    wish = fields.get("answer_after")
    return min(wish, _LONGEST) if isinstance(wish, int) and wish > 0 else 0.0


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
