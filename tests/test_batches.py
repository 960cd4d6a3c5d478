"""Real workers that work in batches: bounded by count and by time, drained, and never in the way of others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from deadsure.runtime.ids import uuid7
from deadsure.runtime.store import pool as pools
from deadsure.runtime.store import submit
from deadsure.supervisor.batching import LONGEST, MOST, Size
from kit.aftermath import entered, per_task, settled
from kit.app import app
from kit.pool import Pool
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

NewPool = Callable[..., Pool]


def holding(store: Store) -> list[int]:
    """How many tasks each living slot names."""
    found = store.query("select cardinality(task_ids) as n from deadsure.slots where not ended order by 1")
    return [int(str(row["n"])) for row in found]


def submit_many(store: Store, payload: str, number: int) -> list[UUID]:
    """So many tasks of the kind `note`, in one statement."""
    pools.register_kinds(store.connection, app.kinds)
    asked = [submit.Submission(uuid7(), "note", payload) for _ in range(number)]
    assert all(isinstance(verdict, submit.Accepted) for verdict in submit.submit(store.connection, asked))
    return [submission.id for submission in asked]


def started(log: Path) -> int:
    return len(entered(log))


def test_the_size_follows_from_how_long_the_handlers_take() -> None:
    size = Size()
    for _ in range(10):
        size.learn(size.next, size.next * 0.0001)
    assert size.next == MOST
    size.learn(MOST, MOST * LONGEST / 20)
    assert size.next == 10
    size.learn(1, 5.0)
    assert size.next == 1


def test_a_backlog_of_harmless_tasks_is_worked_off_in_batches(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tasks = submit_many(store, f'{{"log": "{log}"}}', 400)
    pool = new_pool(workers=2).start()
    rows = settled(store, tasks)
    assert {row["state"] for row in rows} == {"succeeded"}
    assert {row["attempts"] for row in rows} == {1}
    assert set(per_task(entered(log)).values()) == {1}
    # One commit for many: tasks that were finished together were claimed in one statement, under one owner's token.
    commits = store.query("select count(distinct xmin::text) as n from deadsure.tasks")[0]["n"]
    assert int(str(commits)) < len(tasks) / 3
    assert pool.stop() == 0


def test_what_stands_behind_a_slow_task_is_taken_by_others(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    pool = new_pool(workers=2, options={"POOL_POLL_INTERVAL": "0.1"}).start()
    warm = submit_many(store, f'{{"log": "{log}"}}', 300)
    wait_until(lambda: started(log) == len(warm), "the workers have learnt that these are fast")
    slow = store.submit("block.requeue", f'{{"log": "{log}", "go": "{go}"}}')
    fast = submit_many(store, f'{{"log": "{log}"}}', 100)
    wait_until(lambda: started(log) == len(warm) + 101, "all others are started while the slow one runs")
    ended = "select count(*) as n from deadsure.tasks where state = 'succeeded'"
    wait_until(lambda: store.query(ended)[0]["n"] == len(warm) + len(fast), "and committed")
    assert store.row(slow)["state"] == "running"
    go.touch()
    rows = settled(store, [*warm, slow, *fast])
    assert {row["state"] for row in rows} == {"succeeded"}
    assert {row["attempts"] for row in rows} == {1}
    assert set(per_task(entered(log)).values()) == {1}
    assert pool.stop() == 0


def test_a_batch_starts_no_handler_after_its_time(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    """The first 300 teach the worker to take many at a time. Of the next each takes a batch's whole time."""
    log = tmp_path / "log"
    fast = submit_many(store, f'{{"log": "{log}"}}', 300)
    slow = submit_many(store, f'{{"log": "{log}", "seconds": {LONGEST}}}', 10)
    pool = new_pool(workers=1).start()
    rows = settled(store, [*fast, *slow])
    assert {row["attempts"] for row in rows} == {1}
    assert set(per_task(entered(log)).values()) == {1}
    assert [row for row in rows if row["fence"] > 1], "nothing was given back"
    assert pool.stop() == 0


def test_at_a_drain_what_was_not_started_goes_back(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pool = new_pool(workers=1).start()
    tasks = submit_many(store, f'{{"log": "{log}", "seconds": 0.003}}', 3000)
    wait_until(lambda: any(n > 5 for n in holding(store)), "a batch is in hand")
    assert pool.stop() == 0
    rows = {row["id"]: row for row in store.query("select id, state, attempts from deadsure.tasks")}
    assert {str(row["state"]) for row in rows.values()} == {"succeeded", "queued"}
    for task in tasks:
        assert rows[task]["attempts"] == (1 if rows[task]["state"] == "succeeded" else 0)
    assert started(log) == sum(1 for row in rows.values() if row["state"] == "succeeded")


def test_a_task_that_raises_is_tried_again_and_its_neighbours_are_not(new_pool: NewPool, store: Store) -> None:
    good = submit_many(store, "{}", 20)
    bad = store.submit("note", '{"seconds": "no number"}', max_attempts=2)
    more = submit_many(store, "{}", 20)
    pool = new_pool(workers=1).start()
    rows = {row["id"]: row for row in settled(store, [*good, bad, *more])}
    assert (rows[bad]["state"], rows[bad]["attempts"]) == ("failed", 2)
    assert {(rows[task]["state"], rows[task]["attempts"]) for task in (*good, *more)} == {("succeeded", 1)}
    assert pool.stop() == 0


@pytest.mark.kills
def test_a_worker_killed_in_a_batch_loses_nothing(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pool = new_pool(workers=1).start()
    kills = count(long=100, ci=10)
    tasks = submit_many(store, f'{{"log": "{log}", "seconds": 0.001}}', kills * 100)
    for _ in range(kills):
        wait_until(lambda: any(n > 10 for n in holding(store)), "a batch is in hand")
        (victim,) = wait_until(pool.worker_pids, "there is a worker")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda victim=victim: victim not in pool.worker_pids(), "its end is known")  # type: ignore[misc]
    rows = settled(store, tasks, deadline=300)
    assert {row["state"] for row in rows} == {"succeeded"}
    runs = per_task(entered(log))
    for row in rows:
        assert 1 <= runs[str(row["id"])] <= row["attempts"]
    assert max(row["attempts"] for row in rows) >= 2, "no kill hit a batch"
    assert pool.stop() == 0


@pytest.mark.kills
def test_a_poisonous_task_costs_its_neighbours_one_attempt_at_most(
    new_pool: NewPool, store: Store, tmp_path: Path
) -> None:
    pool = new_pool(workers=1).start()
    before = submit_many(store, "{}", 100)
    poison = store.submit("die", "{}")
    after = submit_many(store, "{}", 100)
    rows = {row["id"]: row for row in settled(store, [*before, poison, *after])}
    assert (rows[poison]["state"], rows[poison]["attempts"]) == ("failed", 3)
    assert {rows[task]["state"] for task in (*before, *after)} == {"succeeded"}
    assert max(int(rows[task]["attempts"]) for task in (*before, *after)) <= 2
    assert pool.stop() == 0
