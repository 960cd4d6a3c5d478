"""What a drill is going to do: where the worker is killed, at which attempt, and what the provider promises."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Literal
from uuid import uuid4

import msgspec

from ..runtime.points import POINTS
from .modes import MODES

Confirm = Literal["exit", "pool_lock", "lease"]
CONFIRMS: tuple[Confirm, ...] = ("exit", "pool_lock", "lease")
#: What a drill can be made with; the other modes of the ledger are for tests of their own.
PROVIDERS = ("contract", "none", "lookup-only", "dedup-only", "forgets")
#: At these windows the request has left.
AFTER_SENDING = ("during_call", "after_tool", "before_finish", "after_finish")
MAX_ATTEMPTS = 3
#: Seconds; of a drill whose deaths are proven by an expired lease.
SHORT_LEASE = 3.0
VARIABLE = "DEADSURE_DRILL_PLAN"


@dataclass(frozen=True, slots=True)
class Plan:
    """One kill. `attempt` is the one that is killed: the ones before it fail before they send anything.

    `cancel`: somebody asks for a cancel while the worker stands at the window. `deaths`: so many attempts, one after
    the other, are killed there. `id` names everything the drill owns.
    """

    window: str
    provider: str
    confirm: Confirm = "exit"
    attempt: int = 1
    cancel: bool = False
    deaths: int = 1
    id: str = ""

    @classmethod
    def make(
        cls,
        window: str,
        provider: str,
        confirm: Confirm = "exit",
        attempt: int = 1,
        cancel: bool = False,
        deaths: int = 1,
    ) -> Plan:
        """A plan under a new id. Raises ValueError for what does not exist."""
        if window not in POINTS or provider not in PROVIDERS or provider not in MODES or confirm not in CONFIRMS:
            raise ValueError(f"there is no drill {window}, {provider}, {confirm}")
        if not 1 <= attempt <= MAX_ATTEMPTS:
            raise ValueError(f"the attempt must be from 1 to {MAX_ATTEMPTS}")
        if not 1 <= deaths <= (MAX_ATTEMPTS if attempt == 1 else 1):
            raise ValueError(f"the deaths must be from 1 to {MAX_ATTEMPTS}, and begin with the first attempt")
        return cls(window, provider, confirm, attempt, cancel, deaths, uuid4().hex[:12])

    @property
    def name(self) -> str:
        """Of the queue and of the pool."""
        return f"drill-{self.id}"

    @property
    def transfer(self) -> str:
        """The kind whose worker is killed."""
        return f"{self.name}.transfer"

    @property
    def canary(self) -> str:
        """The kind that shows that the workers go on."""
        return f"{self.name}.noop"


@dataclass(frozen=True, slots=True)
class Orders:
    """What the drill's workers are told: the plan, where its ledger is, and the file in which a worker reports."""

    plan: Plan
    ledger: str
    report: str

    def text(self) -> str:
        """For the variable in the workers' environment."""
        return msgspec.json.encode(asdict(self)).decode()


def orders() -> Orders:
    """What this process was told. The drill's application is a user's application: it may read the environment."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Orders)
