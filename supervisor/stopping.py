"""Stopping, in three steps: drain, then kill what still runs, then settle it in bounded time."""

from __future__ import annotations

import time

from ..runtime import events

#: Seconds that the last recoveries, and after them the api children, may take once the workers were killed.
GRACE = 5.0


class Stopping:
    """What the signals to stop have led to so far. `patience` is the drain's length in seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._drain_until: float | None = None
        self.grace = GRACE

    def told(self) -> bool:
        """Somebody asked us to stop; True the first time: drain. A second time ends the patience at once."""
        now = time.monotonic()
        if self._drain_until is None:
            events.emit("draining", patience=self._patience)
            self._drain_until = now + self._patience
            return True
        events.emit("stopping at once")
        self._drain_until = min(self._drain_until, now)
        return False

    @property
    def told_to(self) -> bool:
        return self._drain_until is not None

    @property
    def out_of_patience(self) -> bool:
        """Whether what still runs is to be killed now."""
        return self._drain_until is not None and time.monotonic() >= self._drain_until

    def over(self, unsettled: bool) -> bool:
        """Whether there is nothing left to wait for: all is settled, or the time to settle it is over as well."""
        if self._drain_until is None:
            return False
        return not unsettled or time.monotonic() >= self._drain_until + self.grace

    @property
    def due(self) -> list[float]:
        """When (time.monotonic) the next step is due."""
        if self._drain_until is None:
            return []
        if self.out_of_patience:
            return [self._drain_until + self.grace, time.monotonic() + 0.05]
        return [self._drain_until]
