"""Effects: what is to be done outside the database, who does it, and what proves that it was done.

A kind with an effect turns its payload into an Intent, without side effects. The runtime hands it to a Provider, with a
key that is the same in every attempt. What the provider promises stands in its Contract; without one there is no
automatic way out of `unknown`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

import rfc8785

from .errors import DeadsureError
from .model import JSON

#: Integers beyond this lose digits in many JSON readers (RFC 8259, section 6; RFC 8785 refuses them).
LARGEST_INTEGER = 2**53 - 1


class Rejected(DeadsureError):
    """The provider said with authority that it did not and will not do it. Definite: the task fails, no retry."""


class NotSent(DeadsureError):
    """The request surely did not leave. Definite: it is tried again within the budget."""


class Ambiguous(DeadsureError):
    """The provider may or may not have done it. The task becomes `unknown`.

    With a `receipt`: the provider has shown this one. It is held against the intent like any other, and kept as
    evidence where it proves something else.
    """

    receipt: Receipt | None = None


class Unavailable(DeadsureError):
    """A lookup got no answer that can be trusted. It is asked again later."""


class Intent(Mapping[str, JSON]):
    """What an effect is to do: `Intent(account="a", amount=5)`.

    Values are JSON without floats: money is an integer (below 2**53) or a string. Raises ValueError for anything that
    has no one canonical form.
    """

    def __init__(self, fields: Mapping[str, JSON] | None = None, /, **more: JSON) -> None:
        self._fields: dict[str, JSON] = {**(fields or {}), **more}
        _check(self._fields, "intent")
        self.canonical: bytes = rfc8785.dumps(self._fields)
        #: SHA-256 of the canonical JSON (RFC 8785), in hexadecimal.
        self.fingerprint: str = hashlib.sha256(self.canonical).hexdigest()

    def __getitem__(self, name: str) -> JSON:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Intent({', '.join(self._fields)}; fingerprint={self.fingerprint[:12]})"


@dataclass(frozen=True, slots=True)
class Contract:
    """What a provider promises. Durations are seconds.

    `lookup`: it can say with authority "done, here is the receipt" or "absent". `dedups_by_key`: it refuses to do one
    key twice, atomically, and answers the repeat with the first receipt. `key_retention`: how long it remembers a key;
    past it an absence proves nothing. `settle_after`: after so long a request already sent can no longer arrive.
    `verify`: the intent's fields that a receipt must repeat; None: all of them.
    """

    lookup: bool
    dedups_by_key: bool
    key_retention: float
    settle_after: float
    verify: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a provider. `request` is byte for byte the same in every attempt.

    `not_after` is when a provider that checks it must refuse; `timeout` is how long the caller waits, in seconds.
    """

    task_id: str
    kind: str
    attempt: int
    fence: int
    key: str
    intent: Intent
    fingerprint: str
    request: bytes
    not_after: datetime
    timeout: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """A provider's proof that it did it: whose key, which intent, under which id, and the intent's own fields."""

    receipt_id: str
    key: str
    fingerprint: str
    fields: Mapping[str, JSON] = field(default_factory=dict)


@runtime_checkable
class Provider(Protocol):
    """Who does it. `perform` raises Rejected, NotSent or Ambiguous; whatever else it raises counts as Ambiguous.

    `lookup` returns None for an authoritative absence, and raises Unavailable when it cannot say.
    """

    @property
    def name(self) -> str: ...
    @property
    def contract(self) -> Contract | None: ...
    def perform(self, call: Call) -> Receipt: ...
    def lookup(self, call: Call) -> Receipt | None: ...


def identity_of(provider: Provider) -> str:
    """Which provider this really is (an HTTP provider's URL), to notice another one behind the same name."""
    return str(getattr(provider, "identity", provider.name))


def timeout_of(provider: Provider) -> float:
    """How long one call may take, in seconds."""
    return float(getattr(provider, "timeout", 10.0))


def key_for(task_id: str) -> str:
    """The effect's name at the provider: a function of the task's id alone, so it survives everything."""
    return f"deadsure-{task_id}"


def mismatch(receipt: Receipt, key: str, intent: Intent, contract: Contract | None) -> str | None:
    """Why this receipt does not prove this intent, in words without values; None when it does.

    Checked at both doors, after a perform and after a lookup. It must be for the same key and fingerprint, have an id,
    and repeat every field that the contract names (all, without one).
    """
    if not isinstance(receipt, Receipt) or not isinstance(receipt.receipt_id, str) or not receipt.receipt_id.strip():
        return "it has no receipt id"
    if receipt.key != key:
        return "it is for another key"
    if receipt.fingerprint != intent.fingerprint:
        return "it is for another intent"
    names = contract.verify if contract is not None and contract.verify is not None else tuple(intent)
    for name in names:
        if name not in receipt.fields or not _same(receipt.fields[name], intent.get(name)):
            return f"its field {name!r} differs"
    return None


def _same(one: JSON, other: JSON) -> bool:
    """Equal as JSON: `True` is not 1."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return one == other


def _check(value: JSON, where: str) -> None:
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, where)
        case int():
            if abs(value) > LARGEST_INTEGER:
                raise ValueError(f"{where}: an integer must be below 2**53; use a string")
        case float():
            raise ValueError(f"{where}: floats are refused, they do not keep money; use integers or strings")
        case list():
            for index, item in enumerate(value):
                _check(item, f"{where}[{index}]")
        case dict():
            for name, item in value.items():
                if not isinstance(name, str):
                    raise ValueError(f"{where}: a field's name must be a string, not {type(name).__name__}")
                _check_text(name, where)
                _check(item, f"{where}.{name}")
        case _:
            raise ValueError(f"{where}: a {type(value).__name__} is not JSON")


def _check_text(text: str, where: str) -> None:
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where}: a text holds NUL or a lone surrogate")
