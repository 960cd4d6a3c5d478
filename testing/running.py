"""Running one handler without a database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from ..runtime import executor
from ..runtime.effects import Intent
from ..runtime.executor import reason_of
from ..runtime.handlers import App
from ..runtime.model import JSON, Claimed, Kind
from ..runtime.model import Outcome as Ended
from ..runtime.performing import intent_of
from ..runtime.states import OnDeath

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What would become of the task. For an effect kind the handler only makes the `intent`; nothing is performed, and
    the state is `running`, or `failed` when it raised.
    """

    state: Literal["succeeded", "failed", "canceled", "queued", "running"]
    result: JSON = None
    failure_reason: str | None = None
    intent: Intent | None = None


def run(app: App, kind: str, payload: JSON, *, attempt: int = 1, cancel_requested: bool = False) -> Outcome:
    """Run the handler of `kind` as a worker would, in this process. Raises KeyError for a kind the app does not have,
    and TypeError or ValueError for a payload that is not JSON.
    """
    text = json.dumps(payload, allow_nan=False)
    registered = app.handler(kind)
    if registered.provider is not None:
        try:
            return Outcome("running", intent=intent_of(registered, text))
        except Exception as error:  # noqa: BLE001  whatever the handler raises is its failure
            return Outcome("failed", failure_reason=reason_of(error))
    declared = registered.kind
    task = Claimed(
        UUID(int=0), 1, kind, attempt, declared.timeout, declared.queue, declared.priority, _EPOCH, _EPOCH, text
    )
    return _finished(executor.execute(app, task, lambda: cancel_requested), declared, attempt, cancel_requested)


def _finished(ended: Ended, declared: Kind, attempt: int, cancel: bool) -> Outcome:
    """What the finish in the database would make of it."""
    match ended.state:
        case "retry" if attempt < declared.max_attempts and not cancel:
            return Outcome("queued", failure_reason=ended.reason)
        case "canceled" if cancel:
            return Outcome("canceled")
        case "succeeded" if cancel and declared.on_death != OnDeath.UNKNOWN:
            return Outcome("canceled")
        case "succeeded":
            return Outcome("succeeded", result=json.loads(ended.result or "null"))
    return Outcome("failed", failure_reason=ended.reason)
