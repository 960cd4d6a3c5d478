"""What is counted: facts that the parts tell beside their events, for counters and not for people.

Each is told once, when its answer is known. What a killed worker did not come to tell is read from the database by its
recovery (`store/account.py`) and told there, as `Missed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple
from uuid import UUID

from .model import Claimed, Settled
from .states import State


class Ended(NamedTuple):
    """One finish. `state` is what the task became, None when the finish was refused; `cause` why it is unknown."""

    kind: str
    state: State | None
    cause: str | None = None


class Stepped(NamedTuple):
    """One finish-and-claim of a worker, or a part of it.

    `names` is every task that the slot names now, with its fence; None when the slot was left as it was. `empty`: it
    asked for work and there was none. `read`: its answer was lost, and this was found by reading.
    """

    ended: Sequence[Ended] = ()
    won: Sequence[Claimed] = ()
    names: Sequence[tuple[UUID, int]] | None = None
    empty: bool = False
    conflict: bool = False
    read: bool = False


class StepLost(NamedTuple):
    """The answer of a finish-and-claim was lost; `claims`: it also asked for work."""

    claims: bool


class Ran(NamedTuple):
    """A handler came to its end."""

    kind: str
    seconds: float


class Called(NamedTuple):
    """A provider's call came to its end."""

    provider: str
    outcome: Literal["receipt", "rejected", "not_sent", "ambiguous", "receipt_mismatch"]


class Asking(NamedTuple):
    """An unknown task's provider has answered its lookup of this number; what that settles is about to be written."""

    task: UUID
    fence: int
    number: int
    provider: str


class Reconciled(NamedTuple):
    """What became of a lookup. `state` is what the task became, None when it stays unknown or has moved on."""

    kind: str
    provider: str
    outcome: str
    state: State | None = None


class Missed(NamedTuple):
    """What a worker had done and did not come to count, as its recovery has read it. `won`: kind, and seconds
    waited where that can still be known.
    """

    ended: Sequence[Ended] = ()
    won: Sequence[tuple[str, float | None]] = ()
    reconciled: Reconciled | None = None


class Recovered(NamedTuple):
    """Tasks that a recovery has settled, by its proof. `cause` is why those of them are unknown that are."""

    proof: Literal["exit", "pool_lock", "lease"]
    tasks: Sequence[Settled]
    cause: str
    seconds: float


class Canceled(NamedTuple):
    """A queued task was canceled, or became unknown because an earlier request of it may still land. May be told again
    for the same `request`.
    """

    request: UUID | None
    kind: str
    state: State


class Resolved(NamedTuple):
    """A person decided about an unknown task. May be told again for the same `decision`."""

    decision: UUID
    kind: str
    state: State


class Exited(NamedTuple):
    """A worker ended. `cause` is a signal's name, or `ok`, `error`. `failed_to_start`: its seat has to wait."""

    cause: str
    failed_to_start: bool


class Renewed(NamedTuple):
    """One renewal of the lease: renewed, refused, or without an answer (failed)."""

    outcome: Literal["renewed", "refused", "failed"]


class LeaseLost(NamedTuple):
    """This pool's lease is lost, and its workers are killed."""


class Swept(NamedTuple):
    """Incarnations, of this pool or another, that this one has ended because their lease was over."""

    incarnations: int


class Answered(NamedTuple):
    """Whether the database gave this process the answer it asked for."""

    up: bool
