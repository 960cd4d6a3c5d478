"""The user's side: an App collects handlers by kind; a Context is what a handler may ask and say."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import NoneType
from typing import Any, TypeVar, get_type_hints

import msgspec

from .effects import Provider, check
from .errors import DeadsureError
from .model import Kind
from .states import OnDeath

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)


class Canceled(DeadsureError):
    """Raised by a handler that gives up because a cancel was requested."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may know about its own attempt. Can be built by hand in a test: `Context(task_id="t")`.

    `deadline` is when the attempt's timeout ends, None without one.
    """

    task_id: str
    kind: str = ""
    attempt: int = 1
    fence: int = 1
    deadline: datetime | None = None
    asks_to_stop: Callable[[], bool] = field(default=_never, repr=False)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for this task to be canceled. Cheap: reads shared memory."""
        return self.asks_to_stop()

    def raise_if_canceled(self) -> None:
        """Raises Canceled when a cancel was requested: the clean way out of a handler."""
        if self.cancel_requested:
            raise Canceled("a cancel was requested")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a definite failure is tried again: exponentially longer, in seconds, with jitter."""

    first: float = 1.0
    factor: float = 2.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        """Raises ValueError for a number that cannot be meant."""
        for what, number in (("first", self.first), ("factor", self.factor), ("longest", self.longest)):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 1e9:
                raise ValueError(f"{what} must be a number of 0 or more; not {number!r}")

    def delay(self, attempt: int) -> float:
        """Seconds to wait after this attempt (1, 2, ...): between half and the whole of the step."""
        step = self.first
        for _ in range(attempt - 1):
            step = min(self.longest, step * self.factor)
        return min(self.longest, step) * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler with what its author declared. `payload_type` is None when the payload is taken as it is.

    With a `provider` it is an effect: the handler turns the payload into an Intent, and the provider performs it.
    """

    kind: Kind
    handler: Handler
    takes_context: bool
    payload_type: Any
    provider: Provider | None = None
    backoff: Backoff = Backoff()


class App:
    """The kinds of task that this application can run.

        app = App()

        @app.task("report.build", on_death="requeue", max_attempts=3)
        def build(payload): ...
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Registered] = {}
        self._kinds: tuple[Kind, ...] = ()

    def task(
        self,
        kind: str,
        *,
        on_death: str = "unknown",
        max_attempts: int = 1,
        timeout: float | None = None,
        queue: str = "default",
        priority: int = 0,
        backoff: Backoff = Backoff(),
    ) -> Callable[[H], H]:
        """Register a handler: `handler(payload)` or `handler(payload, ctx)`, `def` or `async def`.

        `on_death` is what becomes of a task whose worker died in it: "unknown" (it may have had an effect), "fail",
        or "requeue" (the author declares that running it twice, even at once, does no harm). `timeout` is seconds
        from the handler's start. With `max_attempts` above 1 an attempt that raises is tried again after `backoff`.
        Raises ValueError for a value that cannot be meant.
        """
        return self._registrar(Kind(kind, _on_death(on_death), max_attempts, timeout, queue, priority), None, backoff)

    def effect(
        self,
        kind: str,
        *,
        provider: Provider,
        max_attempts: int = 1,
        timeout: float | None = None,
        queue: str = "default",
        priority: int = 0,
        backoff: Backoff = Backoff(),
    ) -> Callable[[H], H]:
        """Register a function that turns a payload into an Intent, without side effects; `provider` performs it.

        A worker's death always makes such a task `unknown`: what settles it is the provider's contract, or a person.
        Raises ValueError for a value that cannot be meant.
        """
        check(provider)
        contract = None if provider.contract is None else msgspec.to_builtins(provider.contract)
        declared = Kind(kind, OnDeath.UNKNOWN, max_attempts, timeout, queue, priority, provider.name, contract)
        return self._registrar(declared, provider, backoff)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind that was registered, in the order of registration."""
        return self._kinds

    def handler(self, kind: str) -> Registered:
        """The handler of this kind. Raises KeyError."""
        return self._handlers[kind]

    def _registrar(self, kind: Kind, provider: Provider | None, backoff: Backoff) -> Callable[[H], H]:
        _check(kind)

        def register(handler: H) -> H:
            self._add(kind, handler, provider, backoff)
            return handler

        return register

    def _add(self, kind: Kind, handler: Handler, provider: Provider | None, backoff: Backoff) -> None:
        if kind.name in self._handlers:
            raise ValueError(f"the kind {kind.name!r} is registered twice")
        parameters = list(inspect.signature(handler).parameters.values())
        if not 1 <= len(parameters) <= (2 if provider is None else 1):
            takes = "(payload) or (payload, ctx)" if provider is None else "(payload), and nothing else"
            raise ValueError(f"the handler of {kind.name!r} must take {takes}")
        payload_type = _payload_type(handler, parameters)
        self._handlers[kind.name] = Registered(kind, handler, len(parameters) == 2, payload_type, provider, backoff)
        self._kinds = (*self._kinds, kind)


def _on_death(text: str) -> OnDeath:
    try:
        return OnDeath(text)
    except ValueError:
        raise ValueError(f"on_death must be one of {', '.join(OnDeath)}; not {text!r}") from None


def _check(kind: Kind) -> None:
    for what, text in (("kind", kind.name), ("queue", kind.queue)):
        if not isinstance(text, str):
            raise ValueError(f"a {what} must be a string, as in @app.task(\"report.build\"); not {text!r}")
        if not 1 <= len(text) <= 200 or not text.isprintable() or text != text.strip():
            raise ValueError(f"a {what} must be 1 to 200 printable characters; not {text!r}")
    for what, number in (("max_attempts", kind.max_attempts), ("priority", kind.priority), ("timeout", kind.timeout)):
        if isinstance(number, bool) or not isinstance(number, (int, float, NoneType)):
            raise ValueError(f"{what} must be a number; not {number!r}")
    if kind.max_attempts < 1:
        raise ValueError("max_attempts must be at least 1")
    if kind.timeout is not None and not 0 < kind.timeout < 1e9:
        raise ValueError("timeout must be a positive number of seconds")
    if not -(2**31) <= kind.priority < 2**31:
        raise ValueError("priority must fit in 32 bits")


def _payload_type(handler: Handler, parameters: list[inspect.Parameter]) -> Any:
    annotation = get_type_hints(handler).get(parameters[0].name)
    return None if annotation in (None, Any, dict, object) else annotation
