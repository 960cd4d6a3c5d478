"""What the parts hand to each other: claims, outcomes, proofs of death, tasks as they are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Literal
from uuid import UUID

import msgspec

from .ids import new_token
from .states import OnDeath, State

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a worker declares about one kind of task. `timeout` is seconds from the handler's start."""

    name: str
    on_death: OnDeath = OnDeath.UNKNOWN
    max_attempts: int = 1
    timeout: float | None = None
    queue: str = "default"
    priority: int = 0
    #: For a kind with an effect: the provider's name, and its contract as it is told to the database.
    provider: str | None = None
    contract: dict[str, JSON] | None = None

    @property
    def batchable(self) -> bool:
        """Whether first attempts at it may be claimed many at a time: nothing about them can be ambiguous."""
        return self.on_death is OnDeath.REQUEUE and self.max_attempts >= 2


@dataclass(frozen=True, slots=True)
class Slot:
    """A worker's row: its id, and the token that its next statement must show.

    `following` is what that statement puts in its place, `taken_over` what settling it does. They are made before
    anything is sent: so, after a lost answer, every token is known that the row can rightly carry. `spot` is where the
    row was last seen, for speed and for nothing else: PostgreSQL's text of a ctid.
    """

    id: UUID
    token: int
    following: int = field(default_factory=new_token, compare=False)
    taken_over: int = field(default_factory=new_token, compare=False)
    spot: str | None = field(default=None, compare=False)

    def next(self, spot: str | None) -> Slot:
        """What it is after its next statement, its row being there."""
        return Slot(self.id, self.following, spot=spot)


class Claimed(msgspec.Struct, frozen=True):
    """A task that one worker got, under this fence. `payload` is JSON text."""

    id: UUID
    fence: int
    kind: str
    attempt: int
    timeout: float | None
    queue: str
    priority: int
    run_at: datetime
    started_at: datetime
    payload: str
    created_at: datetime | None = None

    @property
    def waited(self) -> float:
        """Seconds from the time at which it might run, and was there, to the claim: run_at may be long past."""
        there = self.run_at if self.created_at is None else max(self.run_at, self.created_at)
        return (self.started_at - there).total_seconds()

    @property
    def names(self) -> dict[str, object]:
        """What an event says about it: never its payload."""
        return {"task": str(self.id), "fence": self.fence, "attempt": self.attempt}


EffectCause = Literal[
    "ambiguous_answer", "receipt_mismatch", "unsettled_attempt", "retention_passed", "provider_changed"
]


@dataclass(frozen=True, slots=True)
class EffectEnd:
    """How an attempt at an effect ended. `definite`: its call, if there was one, has a definite answer.

    `needs` is what would settle it, should it be unknown; `receipt` is JSON text.
    """

    definite: bool
    needs: Literal["lookup", "decision"]
    cause: EffectCause = "ambiguous_answer"
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a handler ended. `result` is JSON text; present only when it succeeded.

    `retry`: a definite failure, to be tried again after `delay` seconds if the budget allows, else failed.
    """

    state: Literal["succeeded", "failed", "canceled", "retry", "unknown"]
    result: str | None = None
    reason: str | None = None
    #: For what the hot path does not know: an effect's receipt, how its call ended, and when to try again.
    effect: EffectEnd | None = None
    delay: float = 0.0


_FIRST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look for the next task: a queue, and the position in its order from which to look on.

    `run_at` is an RFC 3339 time, or `-infinity`. The defaults are the queue's start.
    """

    queue: str
    priority: int = -(2**31)
    run_at: str = "-infinity"
    id: UUID = _FIRST_ID


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker looks for: places in the order in which they are tried, and the kinds it can run."""

    places: tuple[Place, ...]
    kinds: tuple[Kind, ...]

    @classmethod
    def from_queues(cls, queues: Iterable[str], kinds: tuple[Kind, ...]) -> Wanted:
        """Each queue from its start."""
        return cls(tuple(Place(queue) for queue in queues), kinds)


class Refusal(StrEnum):
    """Why a guarded write changed no row."""

    SLOT_ENDED = "the slot has ended or carries another token"
    ALREADY_FINISHED = "already finished"
    NOT_YOURS = "the task is not this worker's under this fence"
    NO_SUCH_TASK = "no such task"


@dataclass(frozen=True, slots=True)
class Step:
    """What one finish-and-claim did. `slot` is what the next statement must show.

    `finished` is the new state of the finished task; `refused` says why it was not finished. `claimed` is the next
    task, None when nothing was found; `stale` means that a left-over row was dropped, so ask again at once.
    `trusted` False: the lease is over and nothing was claimed. `conflict`: a due task was passed over, because another
    worker held or took it.
    """

    slot: Slot
    finished: State | None = None
    refused: Refusal | None = None
    claimed: Claimed | None = None
    stale: bool = False
    trusted: bool = True
    conflict: bool = False


Cause = Literal["worker_died", "lease_expired", "timeout", "shutdown"]


@dataclass(frozen=True, slots=True)
class ExitProof:
    """The kernel said how this worker ended; its process is a zombie until the recovery is committed.

    `signal` is a name such as SIGKILL, else `code` is the exit code; both None when the kernel lost the status.
    `evidence` holds what else is known (core dumped, resource usage, the last phase from the black box).
    """

    signal: str | None = None
    code: int | None = None
    cause: Cause = "worker_died"
    phase: str | None = None
    evidence: dict[str, JSON] = field(default_factory=dict)
    name: ClassVar = "exit"

    @property
    def reason(self) -> str:
        if self.signal is not None:
            how = f" ({self.signal})"
        else:
            how = "" if self.code is None else f" (exit code {self.code})"
        text = f"process exited before worker completion{how}"
        return f"{text}: its timeout had passed" if self.cause == "timeout" else text


@dataclass(frozen=True, slots=True)
class LockIdentity:
    """A pool lock: the random id written in the file, and where the kernel says that file is."""

    id: UUID
    device: int
    inode: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class LockProof:
    """The pool lock is held anew, so every process that was forked under it is dead."""

    identity: LockIdentity
    name: ClassVar = "pool_lock"
    reason: ClassVar = "process exited before worker completion"
    cause: ClassVar[Cause] = "worker_died"


@dataclass(frozen=True, slots=True)
class LeaseProof:
    """The database's clock says that the lease is over: its workers may write nothing any more.

    That says nothing about their processes, which may live on and act outside the database.
    """

    name: ClassVar = "lease"
    reason: ClassVar = "lease expired before worker completion"
    cause: ClassVar[Cause] = "lease_expired"


Proof = ExitProof | LockProof | LeaseProof


@dataclass(frozen=True, slots=True)
class Settled:
    """One task that a recovery settled, and what became of it."""

    id: UUID
    kind: str
    state: State
    fence: int
    attempts: int
