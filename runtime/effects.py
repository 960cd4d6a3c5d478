"""Effects: what is to be done outside the database, who does it, and what proves that it was done.

A kind with an effect turns its payload into an Intent, without side effects. The runtime hands it to a Provider, with a
key that is the same in every attempt. What the provider promises stands in its Contract; without one there is no
automatic way out of `unknown`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

import rfc8785

from .errors import DeadsureError
from .model import JSON

#: Integers beyond this lose digits in many JSON readers (RFC 8259, section 6; RFC 8785 refuses them).
LARGEST_INTEGER = 2**53 - 1
#: Bytes of canonical JSON, and how deep it may nest: a receipt repeats it, and must find room where results are kept.
LARGEST_INTENT = 256 * 1024
DEEPEST_INTENT = 50
#: Seconds; more cannot be meant, and PostgreSQL's intervals and our dates have an end.
LONGEST = 1e9


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
    has no one canonical form, and for what is too large or nests too deep.
    """

    def __init__(self, fields: Mapping[str, JSON] | None = None, /, **more: JSON) -> None:
        self._fields: dict[str, JSON] = {**(fields or {}), **more}
        _check(self._fields, "intent")
        self.canonical: bytes = rfc8785.dumps(self._fields)
        if len(self.canonical) > LARGEST_INTENT:
            raise ValueError(f"intent: it has {len(self.canonical)} bytes of JSON, at most {LARGEST_INTENT} are sent")
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


def check(provider: Provider) -> None:
    """Raises ValueError for a provider whose words about itself cannot be kept or meant."""
    name, identity, timeout = provider.name, identity_of(provider), timeout_of(provider)
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise ValueError(f"a provider's name must be 1 to 200 printable characters; not {name!r}")
    if not 1 <= len(identity) <= 2000 or not identity.isprintable():
        raise ValueError(f"the identity of the provider {name!r} must be 1 to 2,000 printable characters")
    if not 0 < timeout < LONGEST:
        raise ValueError(f"the timeout of the provider {name!r} must be a positive number of seconds")
    for verb in (provider.perform, getattr(provider, "lookup", None)):
        if inspect.iscoroutinefunction(verb):
            raise ValueError(f"the provider {name!r} must answer when it is called: no `async def`")
    if provider.contract is not None:
        _check_contract(name, provider.contract)


def _check_contract(name: str, contract: Contract) -> None:
    if not isinstance(contract, Contract):
        raise ValueError(f"the contract of the provider {name!r} must be a Contract or None")
    for what, seconds in (("key_retention", contract.key_retention), ("settle_after", contract.settle_after)):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < LONGEST:
            raise ValueError(f"{what} in the contract of the provider {name!r} must be a number of seconds")
    if contract.verify is not None and not all(isinstance(field, str) for field in contract.verify):
        raise ValueError(f"verify in the contract of the provider {name!r} must hold names")


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
    """Equal as JSON: `True` is not 1, at any depth."""
    match one, other:
        case list(), list():
            return len(one) == len(other) and all(map(_same, one, other))
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _check(value: JSON, where: str, room: int = DEEPEST_INTENT) -> None:
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
        case list() | dict() if room == 0:
            raise ValueError(f"{where}: it nests deeper than {DEEPEST_INTENT}")
        case list():
            for index, item in enumerate(value):
                _check(item, f"{where}[{index}]", room - 1)
        case dict():
            for name, item in value.items():
                if not isinstance(name, str):
                    raise ValueError(f"{where}: a field's name must be a string, not {type(name).__name__}")
                _check_text(name, where)
                _check(item, f"{where}.{name}", room - 1)
        case _:
            raise ValueError(f"{where}: a {type(value).__name__} is not JSON")


def _check_text(text: str, where: str) -> None:
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where}: a text holds NUL or a lone surrogate")
