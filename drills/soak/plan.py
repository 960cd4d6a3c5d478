"""What a soak is going to do: the kinds it runs, and the harm it does, drawn from its seed.

The seed decides which harm comes in which order, after which pause, and which of the living it hits by its place in
their row. It cannot decide what they are doing at that moment: two runs of a seed do the same harm, and meet another
day.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal
from uuid import uuid4

import msgspec

from ...runtime.effects import Contract
from ..modes import contract_of
from ..plan import VARIABLE

What = Literal[
    "worker", "api", "supervisor", "stopped worker", "stopped supervisor", "stopped pool", "ledger", "database"
]
#: One deck of harm; it is shuffled anew each time it is used up, so that every run of any length has the same mix.
DECK: dict[What, int] = {
    "worker": 216,
    "api": 14,
    "supervisor": 8,
    "stopped worker": 3,
    "stopped supervisor": 2,
    "stopped pool": 2,
    "ledger": 4,
    "database": 1,
}
#: The harm that is a SIGKILL of one of the product's processes: these are counted as kills.
KILLS: tuple[What, ...] = ("worker", "api", "supervisor")
#: Of all kills, those that may hit a process younger than this, in seconds: before it is ready. Whoever dies again and
#: again before that is started again ever later, and then there is nobody left to be killed.
YOUNG = 0.08
GROWN = 0.6
#: Seconds. The mean pause between two harms; the lease, and how long beyond it a supervisor stands still.
PAUSE = 0.1
LEASE = 3.0
RENEW_EVERY = 0.5
STILL = (1.2 * LEASE, 1.8 * LEASE)
#: Seconds after which nothing that was sent to a ledger can arrive any more, on a machine that is busy with harm.
SETTLE_AFTER = 3.0
#: Seconds for which a worker waits for a ledger.
CALL_TIMEOUT = 1.5
POOLS = 2
WORKERS = 3


@dataclass(frozen=True, slots=True)
class SoakKind:
    """One kind of task. `mode` is that of its ledger, None for a plain kind."""

    what: str
    on_death: str
    max_attempts: int
    mode: str | None = None

    @property
    def contract(self) -> Contract | None:
        """What its ledger promises."""
        promised = None if self.mode is None else contract_of(self.mode)
        return None if promised is None else replace(promised, settle_after=SETTLE_AFTER)


#: Only `requeue` and the effects are tried again; what a death makes of the others is final, or for a person.
KINDS = (
    SoakKind("requeue", "requeue", 8),
    SoakKind("unknown", "unknown", 1),
    SoakKind("fail", "fail", 1),
    SoakKind("contract", "unknown", 6, "contract"),
    SoakKind("lookup-only", "unknown", 6, "lookup-only"),
    SoakKind("dedup-only", "unknown", 6, "dedup-only"),
    SoakKind("none", "unknown", 6, "none"),
)
MODES = tuple(kind.mode for kind in KINDS if kind.mode is not None)


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """So many kills, from this seed. `id` names everything the soak owns."""

    kills: int
    seed: int
    id: str

    @classmethod
    def make(cls, kills: int, seed: int | None = None) -> SoakPlan:
        """A plan under a new id; without a seed from a new one. Raises ValueError for no kills."""
        if kills < 1:
            raise ValueError("a soak needs at least one kill")
        drawn = random.SystemRandom().randrange(2**32) if seed is None else seed
        return cls(kills, drawn, uuid4().hex[:12])

    @property
    def name(self) -> str:
        """Of the queue and of the pools."""
        return f"drill-{self.id}"

    @property
    def kinds(self) -> dict[str, SoakKind]:
        """The kinds by their full names."""
        return {f"{self.name}.{kind.what}": kind for kind in KINDS}

    def dice(self, what: str) -> random.Random:
        """The same for the same seed, and independent of every other `what`."""
        return random.Random(f"{self.seed} {what}")  # noqa: S311  a choice, not a secret


@dataclass(frozen=True, slots=True)
class Card:
    """One harm. `pause`: seconds before it. `pool` and `victim` choose, from 0 to 1; `seconds`: how long it lasts.

    `young`: it may hit who has only just been started.
    """

    what: What
    pause: float
    pool: float
    victim: float
    seconds: float
    young: bool


def draw(plan: SoakPlan, *, database: bool) -> Iterator[Card]:
    """The harm in its order, without end. Without `database` that one is left out."""
    dice = plan.dice("harm")
    deck = [what for what, times in Counter(DECK).items() for _ in range(times)]
    while True:
        dice.shuffle(deck)
        for what in deck:
            pause, young = dice.expovariate(1 / PAUSE), dice.random() < YOUNG
            card = Card(what, pause, dice.random(), dice.random(), dice.uniform(*STILL), young)
            if database or what != "database":
                yield card


@dataclass(frozen=True, slots=True)
class SoakOrders:
    """What the workers are told: the plan, where each mode's ledger is, and the file in which runs are noted."""

    plan: SoakPlan
    ledgers: dict[str, str]
    runs: str

    def text(self) -> str:
        """For the variable in the workers' environment."""
        return msgspec.json.encode(asdict(self)).decode()


def orders() -> SoakOrders:
    """What this process was told. The soak's application is a user's application: it may read the environment."""
    return msgspec.json.decode(os.environ[VARIABLE], type=SoakOrders)
