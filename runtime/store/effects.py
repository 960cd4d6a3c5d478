"""An effect's statements: what is stored before the call, and the finish that the hot path does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from .. import sql
from ..db import Connection
from ..model import Claimed, Outcome, Refusal, Slot, Step
from ..states import State
from . import own, tell
from .hot import why_refused

_STORED = sql.statement("stored_effect")
_BEFORE_CALL = sql.statement("before_call")
_FINISH = sql.statement("finish_alone")

Verdict = Literal["go", "canceled", "untrusted", "provider_changed", "retention_passed"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be sent, as the task keeps it from its first attempt on. `intent` is canonical JSON text."""

    provider: str
    identity: str
    key: str
    intent: str
    fingerprint: str
    request: bytes


@dataclass(frozen=True, slots=True)
class Permission:
    """The answer of the last check. `verdict` None: the slot has ended or the task is not this worker's any more.

    `earlier`: an earlier attempt's call has no definite answer. For "go": what to send, and until when.
    """

    verdict: Verdict | None
    earlier: bool = False
    intent: str = ""
    request: bytes = b""
    not_after: datetime | None = None


def stored(connection: Connection, slot: UUID, task: Claimed) -> tuple[str, bytes] | None:
    """The intent (JSON text) and the request of an earlier attempt; None when none was prepared."""
    rows = connection.run(_STORED, slot=slot, id=task.id, fence=task.fence)
    return (rows[0][0], rows[0][1]) if rows and rows[0][0] is not None else None


def before_call(
    connection: Connection, slot: Slot, task: Claimed, what: Prepared, timeout: float, retention: float | None
) -> Permission:
    """The last check before the provider is called; with "go" it is noted that it may have been. May be repeated.

    `timeout` is the call's, `retention` the contract's, in seconds.
    """
    answer = own.run(
        connection,
        _BEFORE_CALL,
        slot,
        id=task.id,
        fence=task.fence,
        provider=what.provider,
        identity=what.identity,
        key=what.key,
        intent=what.intent,
        fingerprint=what.fingerprint,
        request=f"\\x{what.request.hex()}",
        timeout=timeout,
        retention=retention,
    )
    mine, verdict, earlier, intent, request, not_after = answer
    if not mine or verdict is None:
        return Permission(None)
    return Permission(verdict, earlier, intent or "", request or b"", not_after)


def finish_alone(
    connection: Connection, slot: Slot, task: Claimed, outcome: Outcome, kept: Sequence[Claimed] = ()
) -> Step:
    """Finish a task in a way that the hot path does not know: a receipt, a retry, `unknown`. Claims nothing.

    `kept` is what the slot holds beside it, and goes on holding.

    Raises what hot.finish_and_claim raises; a lost answer is settled in the same way.
    """
    end = outcome.effect
    answer = own.run(
        connection,
        _FINISH,
        slot,
        next_token=slot.following,
        id=task.id,
        fence=task.fence,
        outcome=outcome.state,
        result=outcome.result,
        reason=outcome.reason,
        delay=outcome.delay,
        effect=end is not None,
        definite=end.definite if end else True,
        cause=end.cause if end else None,
        needs=end.needs if end else "decision",
        receipt=end.receipt if end else None,
        kept=[other.id for other in kept],
        kept_fences=[other.fence for other in kept],
    )
    mine, finished, cause, spot = answer
    if not mine:
        return tell.one(Step(slot, refused=Refusal.SLOT_ENDED), task, kept, False)
    if finished is None:
        return tell.one(Step(slot, refused=why_refused(connection, task)), task, kept, False)
    return tell.one(Step(slot.next(spot), State(finished), stale=True), task, kept, False, cause)
