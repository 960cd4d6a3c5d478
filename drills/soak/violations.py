"""What a check finds. Checks are pure: facts in, violations out; what goes wrong in one is no verdict of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: lost: something acknowledged is not there. duplicate: something was done once more. wrong: all else.
Sort = Literal["lost", "duplicate", "wrong", "needless unknown"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A sentence of docs/invariants.md, by its number, that did not hold; 0: the outcome of an interrupted task.

    `task`: whose history shows it. `times`: how much too often, for a duplicate.
    """

    invariant: int
    what: str
    task: str | None = None
    sort: Sort = "wrong"
    times: int = 1


class Blind(Exception):
    """The facts hold nothing by which this could be judged."""
