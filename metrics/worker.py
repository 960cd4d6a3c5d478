"""What a worker counts.

Its ledger's state says up to where its counters go: which tasks its slot named when it last counted, and which lookup
was being settled. Cells and state change together (journal.py), and a step changes them when its answer is known. So
after a SIGKILL at any place the slot row and this state tell what was not counted: nothing, or exactly the last step.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from ..runtime.facts import Asking, Called, Ran, Reconciled, StepLost, Stepped
from ..runtime.store.account import Counted
from . import catalogue as c
from . import cells
from .memory import MetricsMemory, Page
from .tally import Tally

_HEAD = struct.Struct("<16s?H")
_NAME = struct.Struct("<16sq")
_ASKING = struct.Struct("<16sqi")


class WorkerCounter:
    """The counter of one worker process, whose slot is `slot`. It may be told facts by several threads."""

    def __init__(self, memory: MetricsMemory, page: Page, slot: UUID) -> None:
        self._page = page
        self._slot = slot
        self._tally = Tally(memory)
        self._names: Sequence[tuple[UUID, int]] = ()
        self._held = True
        self._lookup: Asking | None = None
        self._lock = threading.Lock()
        self._hear: dict[type, Callable[[Any], None]] = {
            Stepped: self._stepped,
            StepLost: self._step_lost,
            Ran: self._ran,
            Called: self._called,
            Asking: self._asking,
            Reconciled: self._reconciled,
        }
        page.take_over()
        self._post({})

    def __call__(self, fact: tuple[object, ...]) -> None:
        """Count a fact."""
        hear = self._hear.get(type(fact))
        if hear is not None:
            with self._lock:
                hear(fact)

    def meet(self, kinds: Iterable[str], providers: Iterable[str]) -> None:
        """What this worker will count, so that its series are there before anything has happened."""
        self._tally.meet(kinds, providers)

    def _stepped(self, fact: Stepped) -> None:
        add = self._tally.new().finishes(fact.ended, read=fact.read)
        add.claims([(task.kind, task.waited) for task in fact.won])
        if fact.empty:
            add.one(c.CLAIMS, "empty")
        if fact.conflict:
            add.one(c.CONFLICTS)
        self._held = fact.names is not None
        if fact.names is not None:
            self._names = fact.names
        self._post(add.changes)

    def _step_lost(self, fact: StepLost) -> None:
        if fact.claims:
            self._page.add(cells.of_pool(c.CLAIMS, "in_doubt"))

    def _ran(self, fact: Ran) -> None:
        # Not through the ledger: nobody recovers it, and in a batch that would be a tenth of a task's whole cost.
        for cell, n in self._tally.run(fact.kind, fact.seconds):
            self._page.add(cell, n)

    def _called(self, fact: Called) -> None:
        self._page.ledger.post(self._tally.new().call(fact.provider, fact.outcome).changes)

    def _asking(self, fact: Asking) -> None:
        self._lookup = fact
        self._post({})

    def _reconciled(self, fact: Reconciled) -> None:
        self._lookup = None
        self._post(self._tally.new().lookup(fact).changes)

    def _post(self, changes: dict[int, int]) -> None:
        self._page.ledger.post(changes, encode(self._slot, self._names, self._held, self._lookup))


def encode(slot: UUID, names: Sequence[tuple[UUID, int]], held: bool, asking: Asking | None) -> bytes:
    """The state that stands in the ledger: the fields of Counted, and whose they are."""
    state = _HEAD.pack(slot.bytes, held, len(names))
    for id, fence in names:
        state += _NAME.pack(id.bytes, fence)
    if asking is not None:
        state += _ASKING.pack(asking.task.bytes, asking.fence, asking.number) + asking.provider.encode()
    return state


def decode(state: bytes, slot: UUID) -> Counted:
    """What the worker of this slot has counted. Where it has not come to write anything it has counted nothing."""
    if len(state) < _HEAD.size:
        return Counted()
    whose, held, count = _HEAD.unpack_from(state)
    if whose != slot.bytes:
        return Counted()
    end = _HEAD.size + count * _NAME.size
    names = tuple((UUID(bytes=id), fence) for id, fence in _NAME.iter_unpack(state[_HEAD.size : end]))
    if len(state) == end:
        return Counted(names, held)
    task, fence, number = _ASKING.unpack_from(state, end)
    provider = state[end + _ASKING.size :].decode()
    return Counted(names, held, Asking(UUID(bytes=task), fence, number, provider))
