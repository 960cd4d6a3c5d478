"""The kinds of the state machine: each on_death, with and without retries, and each contract a provider can have."""

from __future__ import annotations

from dataclasses import asdict, replace

from deadsure.runtime.effects import Contract, Intent
from deadsure.runtime.model import Kind
from deadsure.runtime.states import OnDeath

FULL = Contract(lookup=True, dedups_by_key=True, key_retention=3600, settle_after=3600)
CONTRACTS: dict[str, Contract | None] = {
    "pay": FULL,
    "look": replace(FULL, dedups_by_key=False),
    "repeat": replace(FULL, lookup=False),
    "blind": None,
}
INTENT = Intent(account="a", amount=5)


def _effect(name: str, contract: Contract | None) -> Kind:
    told = asdict(contract) if contract is not None else None
    return Kind(name, OnDeath.UNKNOWN, max_attempts=3, provider="bank", contract=told)


KINDS = (
    Kind("plain", OnDeath.UNKNOWN, max_attempts=2),
    Kind("failing", OnDeath.FAIL),
    Kind("harmless", OnDeath.REQUEUE, max_attempts=3),
    *(_effect(name, contract) for name, contract in CONTRACTS.items()),
)
#: The same kinds as another version of the application declares them: nothing is an effect any more.
OTHERWISE = (
    Kind("plain", OnDeath.REQUEUE, max_attempts=2),
    Kind("harmless", OnDeath.FAIL, max_attempts=3),
    *(Kind(name, OnDeath.REQUEUE, max_attempts=3) for name in CONTRACTS),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def contract_of(kind: str) -> Contract:
    """What is promised about this kind; nothing, where there is no contract."""
    nothing = Contract(lookup=False, dedups_by_key=False, key_retention=0.0, settle_after=0.0)
    return CONTRACTS.get(kind) or nothing


def is_effect(kind: str) -> bool:
    return kind in CONTRACTS


def can_settle(kind: str) -> bool:
    """Whether its provider offers a way out of `unknown`."""
    return contract_of(kind).lookup or contract_of(kind).dedups_by_key


def needs(kind: str) -> str:
    return "lookup" if can_settle(kind) else "decision"
