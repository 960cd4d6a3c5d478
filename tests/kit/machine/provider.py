"""The world outside: requests that were sent and may still arrive, what was really done, and what is remembered of it.

A request is a task's id and the fence of the attempt that sent it. The key is the task's, so a provider that dedups
does a task's effect once, as long as it remembers the key; any other does it for every request that arrives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from deadsure.runtime.effects import Receipt

from .kinds import CONTRACTS, INTENT

Request = tuple[UUID, int]


@dataclass
class Provider:
    """What was sent, what has arrived, what was done."""

    sent: set[Request] = field(default_factory=set)
    flying: set[Request] = field(default_factory=set)
    arrived: set[Request] = field(default_factory=set)
    done: Counter[UUID] = field(default_factory=Counter)
    remembered: set[UUID] = field(default_factory=set)

    def send(self, request: Request) -> None:
        """An attempt sends once, however often it asks whether it may."""
        if request not in self.sent:
            self.sent.add(request)
            self.flying.add(request)

    def arrive(self, request: Request, kind: str) -> None:
        """The request arrives, late or not."""
        self.flying.discard(request)
        self.arrived.add(request)
        contract = CONTRACTS[kind]
        if contract is None or not contract.dedups_by_key or request[0] not in self.remembered:
            self.done[request[0]] += 1
        self.remembered.add(request[0])

    def give_up(self, request: Request) -> None:
        """It surely was not sent, or was rejected with authority."""
        self.flying.discard(request)

    def nothing_more_arrives(self, task: UUID) -> None:
        """So much time has passed that what was sent has arrived or is lost."""
        self.flying = {request for request in self.flying if request[0] != task}

    def erase(self, task: UUID) -> None:
        """The task was pruned: under its id and its key all begins anew."""
        self.forget(task)
        self.sent = {request for request in self.sent if request[0] != task}
        del self.done[task]

    def on_its_way(self, task: UUID) -> bool:
        return any(request[0] == task for request in self.flying)

    def forget(self, task: UUID) -> None:
        """The key's retention is over, and what was sent under it has long arrived or is lost."""
        self.nothing_more_arrives(task)
        self.remembered.discard(task)


def receipt(task: UUID) -> Receipt:
    """The provider's proof that it did the task's effect."""
    return Receipt("r-1", f"deadsure-{task}", INTENT.fingerprint, dict(INTENT))
