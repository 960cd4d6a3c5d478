"""What a worker offers in every claim: the kinds that it can run, as parameters.

An application may have hundreds, and they are the same each time: they are encoded once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model import Kind
from ..parameters import Value, encode


@dataclass(frozen=True, slots=True)
class Offer:
    """`named` are the parameters :kinds and :on_deaths; `together` is :batch_kinds."""

    named: dict[str, Value]
    together: str | None


def of(kinds: tuple[Kind, ...]) -> Offer:
    """The offer of exactly this tuple of kinds."""
    global _latest
    latest = _latest  # another thread of the worker may replace it
    if latest[0] is not kinds:
        latest = _latest = (kinds, _made(kinds))
    return latest[1]


def _made(kinds: tuple[Kind, ...]) -> Offer:
    names = encode([kind.name for kind in kinds])
    return Offer(
        {"kinds": names, "on_deaths": encode([kind.on_death for kind in kinds])},
        encode([kind.name for kind in kinds if kind.batchable]),
    )


_latest: tuple[tuple[Kind, ...], Offer] = ((), _made(()))
