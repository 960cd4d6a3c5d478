"""What happens, told to whoever listens: the log now, counters beside it. A decision never logs by itself."""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str, dict[str, object]], None]
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> None:
    """Let `listener(event, fields)` hear every event of this process from now on."""
    _listeners.append(listener)


def unsubscribe_all() -> None:
    """Forget the listeners, as a forked child does with those of its parent."""
    _listeners.clear()


def emit(event: str, **fields: object) -> None:
    """Tell all listeners. `event` is a short sentence in the past tense; no payload and no secret in `fields`."""
    for listener in _listeners:
        listener(event, fields)
