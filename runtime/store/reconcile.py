"""Settling `unknown`: by the provider's own answer, or by a person's decision.

Every write is conditional on the fence that was read before the lookup: an answer that arrives after the task has moved
on changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from .. import sql
from ..db import Connection
from ..effects import Contract, Receipt
from ..events import note
from ..facts import Resolved
from ..parameters import Value
from ..receipts import result_of, text_of
from ..states import State

_CLAIM = sql.statement("claim_lookup")
_FOUND = sql.statement("reconcile_found")
_ABSENT = sql.statement("reconcile_absent")
_MISMATCH = sql.statement("reconcile_mismatch")
_UNAVAILABLE = sql.statement("reconcile_unavailable")
_ASK = sql.statement("ask_now")
_RESOLVE = sql.statement("resolve")
_DECISION = sql.statement("decision")

AbsentVerdict = Literal["queued", "later", "decision", "retention_passed"]


@dataclass(frozen=True, slots=True)
class Doubt:
    """An unknown task that is to be looked up. `key`, `intent` and `request` are None when nothing was ever prepared.

    `started` is the database's time before the lookup; `lookups` counts this one.
    """

    id: UUID
    kind: str
    fence: int
    attempts: int
    payload: str
    key: str | None
    intent: str | None
    request: bytes | None
    identity: str | None
    started: datetime
    lookups: int

    @property
    def names(self) -> dict[str, object]:
        """What an event says about it."""
        return {"task": str(self.id), "fence": self.fence, "attempt": self.attempts}


def claim_lookup(connection: Connection, slot: UUID, kinds: Sequence[str], hold: float) -> Doubt | None:
    """Take one task that is due for a lookup, for `hold` seconds; None when none is."""
    rows = connection.run(_CLAIM, slot=slot, kinds=kinds, hold=hold)
    return Doubt(*rows[0]) if rows else None


def found(connection: Connection, doubt: Doubt, receipt: Receipt) -> bool:
    """The verified receipt settles it: succeeded. False: the task has moved on."""
    return bool(
        connection.run(
            _FOUND,
            id=doubt.id,
            fence=doubt.fence,
            number=doubt.lookups,
            result=result_of(receipt),
            receipt=text_of(receipt),
        )
    )


def absent(connection: Connection, doubt: Doubt, contract: Contract) -> AbsentVerdict | None:
    """The provider has not done it, with authority (or offers only to be asked again under the same key).

    Returns what became of it; None: the task has moved on.
    """
    rows = connection.run(
        _ABSENT,
        id=doubt.id,
        fence=doubt.fence,
        number=doubt.lookups,
        started=doubt.started,
        lookup=contract.lookup,
        dedups=contract.dedups_by_key,
        retention=contract.key_retention,
        settle_after=contract.settle_after,
    )
    verdict: AbsentVerdict | None = rows[0][0] if rows else None
    return verdict


def mismatch(connection: Connection, doubt: Doubt, receipt: Receipt, why: str) -> bool:
    """A receipt that proves something else: kept as evidence, a person has to look. False: the task has moved on."""
    shown = text_of(receipt)
    return bool(connection.run(_MISMATCH, id=doubt.id, fence=doubt.fence, number=doubt.lookups, why=why, receipt=shown))


def unavailable(connection: Connection, doubt: Doubt, delay: float) -> bool:
    """Ask again after `delay` seconds. False: the task has moved on."""
    return bool(connection.run(_UNAVAILABLE, id=doubt.id, fence=doubt.fence, delay=delay))


def ask_now(connection: Connection, id: UUID) -> tuple[str, bool] | None:
    """Have an unknown task looked up at once. Returns its state and whether there is a contract that allows it; None:
    no such task.
    """
    rows = connection.run(_ASK, id=id)
    return (rows[0][0], rows[0][1]) if rows else None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decides about an unknown task. `id` makes a repeat find its own; `result` is JSON text.

    `version` is the row version that the person saw.
    """

    id: UUID
    task: UUID
    version: int
    state: Literal["succeeded", "failed", "canceled"]
    evidence: str
    actor: str
    result: str | None = None


class Undecided(Exception):
    """The decision was not taken: nothing was changed. `why` is no_such_task, version, state, or other_decision: its
    id stands for another one.
    """

    def __init__(
        self, why: Literal["no_such_task", "version", "state", "other_decision"], state: str | None = None
    ) -> None:
        super().__init__(why)
        self.why = why
        self.state = state


def resolve(connection: Connection, decision: Decision, repeated: bool = False) -> None:
    """Carry out a decision and write its audit row, in one transaction. May be repeated after a lost answer.

    `repeated` says that this is such a repeat, and no new request for what was decided long ago: for the counters.
    Raises Undecided; the version is compared before the state, so that who comes second learns that somebody decided.
    """
    said: dict[str, Value] = {
        "decision": decision.id,
        "id": decision.task,
        "state": decision.state,
        "evidence": decision.evidence,
        "actor": decision.actor,
        "result": decision.result,
    }
    there, decided, version, state, kind = connection.run(_RESOLVE, version=decision.version, **said)[0]
    if decided:
        note(Resolved(decision.id, kind, State(decision.state)))
        return
    if not there:
        raise Undecided("no_such_task")
    before = connection.run(_DECISION, **said)
    if before and before[0][0]:
        if repeated:
            note(Resolved(decision.id, kind, State(decision.state)))
        return
    if before:
        raise Undecided("other_decision", state)
    raise Undecided("version" if version != decision.version else "state", state)
