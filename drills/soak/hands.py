"""Threads whose failure is told: what one of them was to see or to do is missing from the facts then."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Hand(threading.Thread):
    """Does `work` until that ends; an error in it becomes one of the `doubts`."""

    def __init__(self, name: str, work: Callable[[], None], doubts: list[str]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._doubts = doubts

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  whatever it was: it is told, and the verdict is unknown
            self._doubts.append(f"the {self.name} failed: {type(error).__name__}: {error}")
