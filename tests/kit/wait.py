"""Waiting for a fact, with a deadline that catches a hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(fact: Callable[[], T], what: str, deadline: float = 20.0) -> T:
    """Ask again and again until `fact()` is true, and return it. Fails the test with `what` after `deadline` s."""
    until = time.monotonic() + deadline
    while True:
        found = fact()
        if found:
            return found
        if time.monotonic() >= until:
            raise AssertionError(f"waited {deadline} s in vain: {what}")
        time.sleep(0.01)
