"""Rules: what comes in through the doors."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from deadsure.runtime.store.submit import Submission
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from .doors import Cancel, Prune, Submit
from .kinds import BY_NAME
from .stage import MANNERS, NOW, NUMBERS, SELDOM, Manner, Stage, choose

_REPEATS = ("submit", "submit under new ids", "cancel", "cancel anew", "prune")
_ONE = st.tuples(
    st.sampled_from([*BY_NAME, "harmless", "pay", "pay", "look", "look", "nobody's"]),
    st.sampled_from([None, None, "other"]),
    st.sampled_from([None, None, 1]),
    SELDOM,
    st.sampled_from([*[None] * 6, 1, 9]),
    st.sampled_from([None, None, None, "k1", "k2"]),
)


class DoorRules(Stage):
    """Submit, cancel, prune."""

    def __init__(self) -> None:
        super().__init__()
        self.submissions: list[Submission] = []
        self.cancels: list[Cancel] = []

    @initialize(asked=st.lists(_ONE, min_size=2, max_size=5))
    def some_tasks(self, asked: list[Any]) -> None:
        self.submit(asked=asked, together=False, how=NOW)

    @rule(asked=st.lists(_ONE, min_size=1, max_size=3), together=SELDOM, how=MANNERS)
    def submit(self, asked: list[Any], together: bool, how: Manner) -> None:
        tasks = [
            Submission(
                self.new_id(),
                kind,
                '{"n": 1}',
                queue=queue,
                priority=priority,
                run_at=datetime.now(UTC) + timedelta(hours=1) if later else None,
                max_attempts=budget,
                key=key,
            )
            for kind, queue, priority, later, budget, key in asked
        ]
        self.submissions += tasks
        self._submit(tasks, together, how)

    def _submit(self, tasks: list[Submission], together: bool, how: Manner) -> None:
        # Whether all were stored is decided by rolling back, which a transaction that stays open cannot show.
        self.do(Submit(tasks, together), replace(how, hold=how.hold and not together))

    @precondition(lambda self: self.not_over())
    @rule(number=NUMBERS, how=MANNERS)
    def cancel(self, number: int, how: Manner) -> None:
        self.cancels.append(Cancel(choose(self.not_over(), number), self.new_id()))
        self.do(self.cancels[-1], how)

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=3, unique=True), what=st.sampled_from(_REPEATS), how=MANNERS)
    def something_is_repeated(self, numbers: list[int], what: str, how: Manner) -> None:
        """After a lost answer, or long after all was over."""
        chosen = {number % len(self.submissions) for number in numbers}
        tasks = [self.submissions[number] for number in sorted(chosen)]
        match what:
            case "submit":
                self._submit(tasks, False, how)
            case "submit under new ids":
                tasks = [replace(task, id=self.new_id()) for task in tasks]
                self.submissions += tasks
                self._submit(tasks, False, how)
            case "cancel" if self.cancels:
                self.do(choose(self.cancels, numbers[0]), how)
            case "cancel anew":
                self.do(Cancel(tasks[0].id, self.new_id()), how)
            case _:
                self.do(Prune(), how)

    def not_over(self) -> list[UUID]:
        return [row.id for row in self.model.all("task") if row.state in ("queued", "running", "unknown")]
