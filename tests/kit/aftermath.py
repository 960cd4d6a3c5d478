"""What is true after the faults: read from the database, and from the log of the handlers that were entered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any
from uuid import UUID

from .pool import Pool
from .store import Store
from .wait import wait_until

_STUCK = """
select t.id from deadsure.tasks t left join deadsure.slots s on s.slot = t.owner
 where t.state = 'running' and (s.slot is null or s.ended or not t.id = any(s.task_ids))
    or t.state = 'queued' and not exists (select 1 from deadsure.ready r where r.id = t.id)
                          and not exists (select 1 from deadsure.scheduled l where l.id = t.id)
"""
_OPEN = "select id, state, kind from deadsure.tasks where state in ('queued', 'running') limit 5"


def settled(store: Store, submitted: Collection[UUID], deadline: float = 60) -> list[dict[str, Any]]:
    """All tasks, once each is over or unknown: exactly those that were submitted, and none that is stuck."""
    try:
        wait_until(lambda: not store.query(_OPEN), "every task is over or unknown", deadline)
    except AssertionError as error:
        raise AssertionError(f"{error}: {store.query(_OPEN)}") from error
    assert store.query(_STUCK) == []
    rows: list[dict[str, Any]] = store.query("select * from deadsure.tasks")
    assert {row["id"] for row in rows} == set(submitted), "tasks were lost, or invented"
    return rows


def entered(log: Path) -> Counter[tuple[str, int]]:
    """How often each handler was entered, by task and fence."""
    found: Counter[tuple[str, int]] = Counter()
    whole, _, _ = log.read_text().rpartition("\n") if log.exists() else ("", "", "")  # the last may be half written
    for line in whole.splitlines():
        what, task, fence, _ = line.split()
        if what == "start":
            found[task, int(fence)] += 1
    return found


def per_task(runs: Counter[tuple[str, int]]) -> Counter[str]:
    """How often each task's handler was entered. No attempt was entered twice."""
    assert not runs or max(runs.values()) == 1, f"an attempt was run twice: {runs.most_common(3)}"
    return Counter(task for task, _ in runs)


def told(pool: Pool, event: str) -> int:
    """How often the pool's processes said this."""
    return pool.log.count(event)


def until_told(pool: Pool, event: str, times: int) -> None:
    """Wait until it was said so often; then it was not said more often."""
    wait_until(lambda: told(pool, event) >= times, f"{event!r} is told {times} times: {told(pool, event)}")
    assert told(pool, event) == times
