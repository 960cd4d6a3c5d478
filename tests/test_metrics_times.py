"""Times that a clock or a client made absurd: the work goes on, and so does the counting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deadsure.metrics import catalogue, cells
from deadsure.runtime import events
from deadsure.runtime.facts import Ran
from kit.metrics import scrape
from kit.pool import Pool

LONG_AGO = ["0001-01-01T00:00:00Z", "1400-01-01T00:00:00Z", "1970-01-01T00:00:00Z"]


@pytest.mark.parametrize("kind", ["words", "note"])
def test_a_run_at_that_is_long_past_harms_nobody(new_pool: Callable[..., Pool], kind: str) -> None:
    """Alone and in batches: it waits from its submit, and no worker ends by it."""
    pool = new_pool(workers=1).start()
    tasks = [pool.submit(kind, {"text": "a b"}, run_at=at) for at in LONG_AGO * 3]
    for task in tasks:
        pool.wait_for(task, "succeeded")
    found = scrape(pool.port)
    assert found.sum("deadsure_task_wait_seconds_count", kind=kind) == len(tasks)
    assert found.sum("deadsure_task_wait_seconds_sum", kind=kind) < 20 * len(tasks)
    assert found.sum("deadsure_worker_exits_total") == 0


def test_what_is_observed_is_at_most_a_year() -> None:
    (_, (_, longest)) = cells.observed(catalogue.TASK_WAIT, 0, 1e30)
    assert longest == int(cells.LONGEST * cells.NANOSECONDS)
    (_, (_, none)) = cells.observed(catalogue.TASK_WAIT, 0, -1e30)
    assert none == 0


def test_what_cannot_be_counted_is_told_and_stops_nobody() -> None:
    told: list[str] = []
    heard: list[object] = []

    def broken(fact: tuple[object, ...]) -> None:
        raise ValueError("full")

    events.subscribe(lambda event, fields: told.append(f"{event}: {fields['fact']}, {fields['error']}"))
    events.count(broken)
    events.count(heard.append)
    try:
        events.note(Ran("kind", 1.0))
    finally:
        events.unsubscribe_all()
    assert told == ["a fact was not counted: Ran, ValueError: full"]
    assert heard == [Ran("kind", 1.0)]
