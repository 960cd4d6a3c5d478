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
    """Tell all counters one fact of facts.py. What one of them cannot count is told, and stops nobody's work."""
    for counter in _counters:
        try:
            counter(fact)
        except Exception as error:  # noqa: BLE001  a fault in counting must not become one in what is counted
            emit("a fact was not counted", fact=type(fact).__name__, error=f"{type(error).__name__}: {error}")
