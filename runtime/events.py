"""What happens, told to whoever listens. A decision never logs and never counts by itself.

`emit` tells people, through the log; `note` tells the counters (facts.py).
"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str, dict[str, object]], None]
Counter = Callable[[tuple[object, ...]], None]
_listeners: list[Listener] = []
_counters: list[Counter] = []


def subscribe(listener: Listener) -> None:
    """Let `listener(event, fields)` hear every event of this process from now on."""
    _listeners.append(listener)


def count(counter: Counter) -> None:
    """Let `counter(fact)` hear every fact of this process from now on."""
    _counters.append(counter)


def unsubscribe_all() -> None:
    """Forget all of them, as a forked child does with those of its parent."""
    _listeners.clear()
    _counters.clear()


def emit(event: str, **fields: object) -> None:
    """Tell all listeners. `event` is a short sentence in the past tense; no payload and no secret in `fields`."""
    for listener in _listeners:
        listener(event, fields)


def note(fact: tuple[object, ...]) -> None:
    """Tell all counters one fact of facts.py."""
    for counter in _counters:
        counter(fact)
