"""The submit statement by itself: races between writers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db
from deadsure.runtime.ids import uuid7
from deadsure.runtime.store import read
from deadsure.runtime.store.submit import Accepted, BudgetExceeded, KeyTaken, Submission, submit, submit_all
from kit.postgres import server_log
from kit.store import Store


def test_writers_with_the_same_keys_in_any_order_never_deadlock(store: Store, server: EmbeddedPostgres) -> None:
    def write(connection: db.Connection) -> None:
        for turn in range(50):
            keys = [f"{turn}-{n}" for n in range(30)]
            random.shuffle(keys)
            verdicts = submit(connection, [Submission(uuid7(), "plain", "1", key=key) for key in keys])
            assert all(isinstance(verdict, Accepted) for verdict in verdicts)

    before = server_log(server).count("deadlock detected")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, [store.connect() for _ in range(4)]))
    assert len(store.query("select id from deadsure.tasks")) == 50 * 30
    assert server_log(server).count("deadlock detected") == before


def test_the_same_id_again_is_the_same_task_and_no_replay(store: Store) -> None:
    task = Submission(uuid7(), "plain", "1", key="k")
    first, again = (submit(store.connection, [task])[0] for _ in range(2))
    assert first == again
    assert isinstance(again, Accepted)
    assert not again.replayed


def test_more_attempts_than_the_kind_allows_are_not_stored(store: Store) -> None:
    (verdict,) = submit(store.connection, [Submission(uuid7(), "harmless", "1", max_attempts=4)])
    assert isinstance(verdict, BudgetExceeded)
    assert store.query("select id from deadsure.tasks") == []


def test_all_or_none_stores_nothing_beside_a_refusal(store: Store) -> None:
    submit(store.connection, [Submission(uuid7(), "plain", "1", key="k")])
    verdicts = submit_all(
        store.connection, [Submission(uuid7(), "plain", "2"), Submission(uuid7(), "plain", "3", key="k")]
    )
    assert isinstance(verdicts[1], KeyTaken)
    assert len(store.query("select id from deadsure.tasks")) == 1


def test_another_request_under_a_key_is_refused_also_beside_a_repeat_of_the_first(store: Store) -> None:
    first = Submission(uuid7(), "plain", "1", key="k")
    submit(store.connection, [first])
    repeats = Submission(uuid7(), "plain", "1", key="k")
    other = Submission(uuid7(), "plain", "2", key="k")
    verdicts = submit(store.connection, [repeats, other])
    assert [type(verdict) for verdict in verdicts] == [Accepted, KeyTaken]
    assert [getattr(verdict, "id", None) for verdict in verdicts] == [None, first.id]


def test_a_page_is_read_in_time_whatever_plan_is_made(store: Store) -> None:
    """Without statistics, and with a plan for any parameters, as after a crash of PostgreSQL."""
    for _ in range(4):
        store.query(
            "select count(deadsure.submit('plain', cast(cast(n as text) as jsonb))) from generate_series(1, 3000) n"
        )
    reader = store.connect("reader")
    reader._driver.run("set plan_cache_mode = force_generic_plan")
    reader._driver.run("set statement_timeout = '1500ms'")
    for chosen in (read.Filter(), read.Filter(queue="default"), read.Filter(state="queued"), read.Filter(kind="none")):
        page = read.page(reader, chosen, read.NEWEST, 50)
        assert len(page.tasks) == (0 if chosen.kind else 50)
