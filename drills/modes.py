"""What the sandbox ledger can be told to be, and what its contract may then promise."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.effects import Contract


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a ledger does. Durations are seconds.

    `retention`: how long it remembers a key, None for ever. `delay`: how long an answer takes, after the effect.
    `lies`: its receipts carry the fingerprint of another intent. `flaky`: of every five requests one is closed on and
    one left hanging, both after the effect; one is 503 before the effect and one after it; one is answered. `checks`:
    it refuses an old fence and what arrives past its not-after time. `faults`: how likely any request or lookup meets
    one of the four faults; then the delay is a random one, up to `delay`.
    """

    lookup: bool = True
    dedups: bool = True
    retention: float | None = None
    delay: float = 0.0
    lies: bool = False
    flaky: bool = False
    checks: bool = True
    faults: float = 0.0


#: Of the mode `forgets`: how long it remembers a key, in seconds.
SHORT_RETENTION = 2.0
#: A request that was sent has arrived on this machine after so many seconds, or never will.
SETTLE_AFTER = 0.5
_FOR_EVER = 86400.0

MODES: dict[str, Behaviour] = {
    "contract": Behaviour(),
    "none": Behaviour(lookup=False, dedups=False, checks=False),
    "lookup-only": Behaviour(dedups=False, checks=False),
    "dedup-only": Behaviour(lookup=False),
    "forgets": Behaviour(retention=SHORT_RETENTION, checks=False),
    "wrong-fingerprint": Behaviour(lies=True),
    "slow": Behaviour(delay=1.0),
    "flaky": Behaviour(flaky=True),
}


def contract_of(mode: str) -> Contract | None:
    """What a provider in this mode may promise; None where there is nothing to promise."""
    behaviour = MODES[mode]
    if not behaviour.lookup and not behaviour.dedups:
        return None
    retention = _FOR_EVER if behaviour.retention is None else behaviour.retention
    return Contract(behaviour.lookup, behaviour.dedups, key_retention=retention, settle_after=SETTLE_AFTER)
