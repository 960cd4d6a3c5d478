"""An application whose handlers return and raise what cannot be stored, and a provider whose receipts cannot be."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deadsure import Ambiguous, App, Call, Canceled, Contract, Intent, Receipt, Rejected

app = App()


class Evil:
    """Whatever it is asked, it raises, and not even an Exception."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt("no repr")

    __str__ = __hash__ = __eq__ = __iter__ = __repr__  # type: ignore[assignment]


class EvilText(str):
    """A text that is none as soon as somebody uses it."""

    def __format__(self, _: str) -> str:
        raise SystemExit("no format")

    __len__ = __bool__ = encode = __getitem__ = __format__  # type: ignore[assignment]


class Unbound:
    """A proxy that nobody has bound: it does not even say what it is."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("outside of a context")


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class Tricky(Exception):
    def __str__(self) -> str:
        return EvilText("a text like a trap")


@dataclasses.dataclass
class Node:
    next: Any = None


class Fields(Mapping[str, Any]):
    """The fields of a receipt, on a wire that is cut."""

    def __getitem__(self, name: str) -> Any:
        raise OSError("cut")

    __iter__ = __len__ = __getitem__  # type: ignore[assignment]


def _circle() -> Node:
    node = Node()
    node.next = node
    return node


def _ring() -> list[Any]:
    ring: list[Any] = []
    ring.append([ring])
    return ring


def _deep(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


#: What cannot be stored, by name.
VALUES: dict[str, Callable[[], Any]] = {
    "NUL": lambda: "a\0b",
    "NUL in a name": lambda: {"a": {"\0": 1}},
    "NaN": lambda: [float("nan")],
    "infinity": lambda: float("-inf"),
    "NaN in a dataclass": lambda: Node(float("nan")),
    "a lone surrogate": lambda: "\ud800",
    "a lone surrogate in a name": lambda: {"\udfff": 1},
    "too large": lambda: "é" * 600_000,
    "too deep": lambda: _deep(101),
    "far too deep": lambda: _deep(200_000),
    "a ring": _ring,
    "a circle": _circle,
    "an object": object,
    "an object that raises": Evil,
    "an object without a class": Unbound,
    "a text that raises": lambda: {"a": [EvilText("x"), Evil()]},
    "a huge integer": lambda: 10**5000,
    "a tuple as a name": lambda: {(1, 2): 3},
    "a generator": lambda: (n for n in range(3)),
    "a class": lambda: Evil,
}

#: What can, though it is no JSON: what it becomes.
CONVERTED: dict[str, tuple[Callable[[], Any], Any]] = {
    "numbers as names": (lambda: {1: "a", 2.5: "b", None: "c"}, {"1": "a", "2.5": "b", "null": "c"}),
    "a dataclass": (lambda: Node(Node()), {"next": {"next": None}}),
    "a tuple": (lambda: (1, (2,)), [1, [2]]),
    "bytes": (lambda: b"\0\xff", "AP8="),
    "a set": (lambda: {1}, [1]),
    "an integer of 4,000 digits": (lambda: 10**4000, 10**4000),
    "100 deep": (lambda: _deep(100), _deep(100)),
    "backslashes before u0000": (lambda: "\\u0000", "\\u0000"),
}

#: What is raised, by name, and what the reason then is.
RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "NUL": (lambda: ValueError("a\0b"), r"ValueError: a\x00b"),
    "a lone surrogate": (lambda: ValueError("\ud800"), r"ValueError: \ud800"),
    "a name in other letters": (lambda: type("Ошибка", (Exception,), {})("x"), "Ошибка: x"),
    "10 MB": (lambda: ValueError("x" * 10_000_000), "ValueError: " + "x" * 1987 + "…"),
    "no text": (Mute, "Mute: (its text cannot be shown)"),
    "a text that raises": (Tricky, "Tricky: a text like a trap"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "MemoryError": (MemoryError, "MemoryError"),
    "a group": (
        lambda: ExceptionGroup("two", [ValueError("a\0"), BaseExceptionGroup("more", [Mute()])]),
        r"ExceptionGroup: two (2 sub-exceptions) [ValueError: a\x00; ExceptionGroup: more (1 sub-exception) "
        "[Mute: (its text cannot be shown)]]",
    ),
    "Canceled": (lambda: Canceled("a\0"), r"Canceled: a\x00"),
}


def _made(name: str) -> Any:
    return VALUES[name]() if name in VALUES else CONVERTED[name][0]()


@app.task("return", on_death="fail")
def returns(payload: dict[str, Any]) -> Any:
    return _made(payload["what"])


@app.task("return.async", on_death="fail")
async def returns_later(payload: dict[str, Any]) -> Any:
    await asyncio.sleep(0)
    return _made(payload["what"])


@app.task("return.together", on_death="requeue", max_attempts=3)
def returns_together(payload: dict[str, Any]) -> Any:
    return _made(payload["what"])


@app.task("raise", on_death="fail")
def raises(payload: dict[str, Any]) -> None:
    raise RAISED[payload["what"]][0]()


@app.task("raise.async", on_death="fail")
async def raises_later(payload: dict[str, Any]) -> None:
    await asyncio.sleep(0)
    raise RAISED[payload["what"]][0]()


@app.task("echo", on_death="fail")
def echo(payload: Any) -> Any:
    return payload


class Careless:
    """A provider that does everything, notes it, and answers with what the intent names."""

    timeout = 5.0

    def __init__(self, name: str, contract: Contract | None = None) -> None:
        self.name = name
        self.contract = contract

    def perform(self, call: Call) -> Receipt:
        with Path(str(call.intent["log"])).open("a") as log:
            log.write(f"{call.key}\n")
        if self.contract is not None:
            raise Ambiguous("no\0 answer \ud800")
        return receipt(call)

    def lookup(self, call: Call) -> Receipt | None:
        return receipt(call)


def receipt(call: Call) -> Any:
    """What the provider shows, as the intent says."""
    what = str(call.intent["what"])
    fields = dict(call.intent)
    right = Receipt("r-1", call.key, call.fingerprint, fields)
    match what.partition(" with ")[0::2]:
        case "a field", name:
            return dataclasses.replace(right, fields={**fields, "more": _made(name)})
        case "a proof", name:
            return dataclasses.replace(right, fields={**fields, "what": _made(name)})
        case "an id", name:
            return dataclasses.replace(right, receipt_id=_made(name))
        case "a key", name:
            return dataclasses.replace(right, key=_made(name))
    wrong = {"no fields": dataclasses.replace(right, fields=None), "cut": dataclasses.replace(right, fields=Fields())}  # type: ignore[arg-type]
    nothing = {"nothing": None, "a dict": dataclasses.asdict(right), "evil": Evil()}
    if what in ("rejected", "ambiguous"):
        raise (Rejected if what == "rejected" else Ambiguous)("a\0\ud800")
    if what == "mute":
        raise Mute
    return {**wrong, **nothing}[what]


def _intent(payload: dict[str, Any]) -> Intent:
    return Intent(payload)


_FULL = Contract(lookup=True, dedups_by_key=False, key_retention=3600, settle_after=0)
app.effect("receipt", provider=Careless("careless"))(_intent)
app.effect("receipt.looked_up", provider=Careless("forgetful", _FULL))(_intent)


@app.effect("intent", provider=Careless("never"), max_attempts=3)
def intent(payload: dict[str, Any]) -> Any:
    return Intent(value=_made(payload["what"])) if payload["what"] in VALUES else payload["what"]
