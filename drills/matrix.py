"""Every kill there is: windows x provider x attempt x cancel requested or not, each with a pool of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from ..runtime.errors import DeadsureError
from ..runtime.points import POINTS
from . import checker, kill
from .checker import Verdict
from .facts import Facts
from .kill import Site
from .plan import MAX_ATTEMPTS, PROVIDERS, Confirm, Plan

Cell = tuple[Plan, Facts | None, Verdict]


def plans(confirm: Confirm = "exit", sample: int | None = None, seed: int | None = None) -> list[Plan]:
    """All cells of the matrix; or so many of them, chosen by `seed`, with every window and every provider among them
    as far as they go round.
    """
    attempts = range(1, MAX_ATTEMPTS + 1)
    found = [Plan.make(w, p, confirm, n, c) for p, w, n, c in product(PROVIDERS, POINTS, attempts, (False, True))]
    if sample is None or sample >= len(found):
        return found
    chosen = random.Random(seed)  # noqa: S311  a choice, not a secret
    chosen.shuffle(found)
    return _spread(found)[:sample]


def hold(site: Site, cells: Sequence[Plan], jobs: int = 1) -> Iterator[Cell]:
    """Carry them out, `jobs` at a time, and yield them in their order."""
    with ThreadPoolExecutor(jobs, thread_name_prefix="drill") as threads:
        yield from threads.map(lambda plan: _cell(site, plan), cells)


def _cell(site: Site, plan: Plan) -> Cell:
    """One cell. A drill that could not be carried out says nothing: its verdict is unknown."""
    try:
        facts = kill.run(site, plan)
    except (DeadsureError, OSError) as error:
        return plan, None, Verdict("unknown", (str(error),))
    return plan, facts, checker.judge(plan, facts)


def _spread(found: list[Plan]) -> list[Plan]:
    """In rounds, so that the first ones differ in window and provider as much as possible."""
    rounds: dict[tuple[str, str], int] = {}
    order = {name: number for number, name in enumerate(POINTS)}

    def place(plan: Plan) -> tuple[int, int]:
        seen = rounds[(plan.window, plan.provider)] = rounds.get((plan.window, plan.provider), 0) + 1
        return seen, (order[plan.window] + PROVIDERS.index(plan.provider)) % len(POINTS)

    return [plan for _, plan in sorted(((place(plan), plan) for plan in found), key=lambda pair: pair[0])]
