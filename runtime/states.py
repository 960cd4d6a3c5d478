"""The states of a task and the only ways between them.

This table is the source. The schema repeats it as CHECK constraints, docs/state-machine.md draws it, and a test
holds the three together.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a task is. Terminal states never change."""

    QUEUED = "queued"
    RUNNING = "running"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class OnDeath(StrEnum):
    """What becomes of a running task whose worker is proven dead. Declared per kind.

    `requeue` is the author's declaration that running the handler twice, even at once, does no harm.
    """

    UNKNOWN = "unknown"
    FAIL = "fail"
    REQUEUE = "requeue"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELED})

Q, R, U, S, F, C = State

#: (from, to) -> who may do it. `None` as the origin: the row did not exist.
TRANSITIONS: dict[tuple[State | None, State], frozenset[str]] = {
    (None, Q): frozenset({"submit"}),
    (Q, R): frozenset({"claim"}),
    (Q, C): frozenset({"cancel"}),
    (Q, U): frozenset({"cancel"}),
    (R, S): frozenset({"finish"}),
    (R, F): frozenset({"finish", "recover", "sweep"}),
    (R, C): frozenset({"finish", "release", "recover", "sweep"}),
    (R, Q): frozenset({"finish", "release", "recover", "sweep"}),
    (R, U): frozenset({"finish", "recover", "sweep"}),
    (U, S): frozenset({"reconcile", "resolve"}),
    (U, Q): frozenset({"reconcile"}),
    (U, F): frozenset({"resolve"}),
    (U, C): frozenset({"resolve"}),
}
