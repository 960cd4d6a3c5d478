"""The measurement's own switch: a worker without metrics, black box and before-call check. Nothing else may import it.

What is left is what cannot be left out, the claim and the finish; so a figure beside it tells what the three cost.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ..runtime import events
from ..runtime.blackbox import Phase, SeatMemory
from ..runtime.store import effects
from ..runtime.store.effects import Permission, Prepared

#: In the environment of a measurement's pool: with any value, its workers are bare.
BARE = "DEADSURE_BENCH_BARE"


def strip() -> None:
    """Make this process bare. It still says when it is idle: a pool is ready only then."""
    events._counters.clear()
    whole = SeatMemory.write_box

    def write_box(self: SeatMemory, phase: Phase, *rest: Any, **named: Any) -> None:
        if phase not in (Phase.HANDLING, Phase.FINISHING):
            whole(self, phase, *rest, **named)

    def before_call(_: object, __: object, ___: object, what: Prepared, timeout: float, ____: object) -> Permission:
        until = datetime.now(UTC) + timedelta(seconds=timeout)
        return Permission("go", False, what.intent, what.request, until)

    SeatMemory.write_box = write_box  # type: ignore[method-assign]
    effects.before_call = before_call  # type: ignore[assignment]
