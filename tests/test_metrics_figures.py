"""Figures of the database: they move when, and only when, the thing itself happens; old ones are withheld."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from deadsure.metrics import figures as shown
from deadsure.metrics.collector import Collector, Pool
from deadsure.metrics.exposition import Exposition
from deadsure.metrics.figures import Row
from deadsure.metrics.memory import MetricsMemory
from deadsure.runtime import db
from deadsure.runtime.blackbox import PoolMemory
from deadsure.runtime.errors import StatementRefused
from deadsure.runtime.model import ExitProof
from deadsure.runtime.store import figures, recover
from deadsure.supervisor import figures as reading
from deadsure.supervisor.figures import Figures
from deadsure.supervisor.link import Link
from deadsure.supervisor.resolver import Resolver
from kit.metrics import Scrape, parse
from kit.store import Store
from kit.wait import wait_until

KILLED = ExitProof("SIGKILL")


class Reader:
    """The supervisor's reading, part by part, and what a scrape then shows."""

    def __init__(self, settings: db.Settings) -> None:
        self.memory = MetricsMemory(seats=1, apis=1)
        self.link = Link(settings, "figures", Resolver(settings.dsn))
        self._exposition = Exposition(Collector(Pool("default", 1, "0"), PoolMemory(1), self.memory))

    def read(self) -> Scrape:
        figures = Figures(("default",), self.memory)
        for _ in range(4):
            figures.read_if_due(self.link)
        return self.scrape()

    def scrape(self) -> Scrape:
        return parse(self._exposition.text("")[0].decode())


@pytest.fixture
def reader(store: Store) -> Iterator[Reader]:
    made = Reader(store.settings)
    yield made
    made.link.close()


def test_open_tasks_are_told_by_queue_and_state(store: Store, reader: Reader) -> None:
    zeros = {("default", state): 0.0 for state in ("queued", "scheduled", "running", "unknown")}
    assert _tasks(reader.read()) == zeros
    for _ in range(3):
        store.submit("plain")
    store.submit("plain", queue="somebody's own")
    store.submit("plain", run_at=store.query("select now() + interval '1 hour' as at")[0]["at"])
    store.register("of another pool")
    store.query("update deadsure.kinds set queue = 'theirs' where kind = 'of another pool'")
    store.submit("of another pool")
    worker = store.worker()
    assert worker.claim() is not None
    assert _tasks(reader.read()) == zeros | {
        ("default", "queued"): 2, ("default", "scheduled"): 1, ("default", "running"): 1,
        ("other", "queued"): 1, ("theirs", "queued"): 1,
    }  # fmt: skip
    recover.recover_worker(store.connection, worker.slot.id, KILLED)
    assert _tasks(reader.read())["default", "unknown"] == 1
    assert _tasks(reader.read())["default", "running"] == 0


def test_beyond_the_bound_they_are_estimated(store: Store, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "EXACT", 20)
    for priority in range(300):
        store.submit("plain", priority=priority % 3, queue="default" if priority % 3 else "theirs")
    store.query("analyze deadsure.ready")
    found = _tasks(reader.read())
    assert 150 <= found["default", "queued"] <= 250
    assert 75 <= found["other", "queued"] <= 125


def test_the_age_of_the_oldest_goes_by_when_it_might_run(store: Store, reader: Reader) -> None:
    assert _oldest(reader.read()) == {"queued": 0, "running": 0, "unknown": 0}
    old, young = store.submit("plain", priority=5), store.submit("plain", priority=1)
    for id, seconds in ((old, 500), (young, 100)):
        store.query("update deadsure.ready set run_at = run_at - make_interval(secs => cast(:s as int)) where id = :id",
                    s=seconds, id=id)  # fmt: skip
    assert 500 <= _oldest(reader.read())["queued"] < 600
    assert _oldest(reader.read())["running"] == 0


def test_unknown_tasks_are_told_by_kind_and_need(store: Store, reader: Reader) -> None:
    reader.memory.kinds.index("plain")
    none = {("plain", "lookup"): 0.0, ("plain", "decision"): 0.0}
    assert _unknown(reader.read()) == none
    store.submit("plain")
    worker = store.worker()
    assert worker.claim() is not None
    assert _unknown(reader.read()) == none
    recover.recover_worker(store.connection, worker.slot.id, KILLED)
    store.query("update deadsure.unknowns set since = since - interval '1000 seconds'")
    found = reader.read()
    assert _unknown(found) == none | {("plain", "decision"): 1}
    assert 1000 <= found.get("deadsure_unknown_oldest_seconds", kind="plain", needs="decision") < 1100
    assert found.get("deadsure_unknown_oldest_seconds", kind="plain", needs="lookup") == 0


def test_unknown_tasks_of_kinds_beyond_the_bound_are_added_up(store: Store, reader: Reader) -> None:
    for number in range(60):
        store.query(
            "insert into deadsure.unknowns (id, kind, needs, since)"
            " values (gen_random_uuid(), :kind, 'decision', now())", kind=f"kind-{number}",
        )  # fmt: skip
    found = _unknown(reader.read())
    assert len([kind for kind, _ in found if kind.startswith("kind-")]) == 100
    assert found["other", "decision"] == 10


def test_an_old_transaction_is_seen_while_it_is_open_and_not_after(store: Store, reader: Reader) -> None:
    assert reader.read().get("deadsure_oldest_transaction_seconds") < 60
    holder = store.connect()
    with holder.transaction():
        holder._driver.run("set transaction isolation level repeatable read")
        holder._driver.run("select 1 from deadsure.tasks")
        age = lambda: reader.read().get("deadsure_oldest_transaction_seconds")  # noqa: E731
        first = age()
        wait_until(lambda: age() >= first + 0.2, "it grows older")
    assert reader.read().get("deadsure_oldest_transaction_seconds") < 0.2


def test_dead_rows_are_told_for_each_table(store: Store, reader: Reader) -> None:
    found = reader.read().by("deadsure_dead_tuples", "table")
    assert set(found) <= {("tasks",), ("ready",), ("scheduled",), ("unknowns",), ("slots",)}
    assert len([name for name, _ in reader.read().values if name == "deadsure_dead_tuples"]) == 5


# --- when they cannot be read


def test_an_old_part_is_withheld_and_not_zeroed(store: Store, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    store.submit("plain")
    assert _tasks(reader.read())["default", "queued"] == 1
    monkeypatch.setattr(shown, "FRESH", 0.0)
    found = reader.scrape()
    assert _tasks(found) == {}
    assert found.get("deadsure_database_figures_age_seconds", part="queued") > 0


def test_a_look_that_takes_too_long_is_given_up_and_leaves_the_connection(
    store: Store, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONGEST", 0.1)
    locker = store.connect()
    with locker.transaction():
        locker._driver.run("lock table deadsure.ready in access exclusive mode")
        began = time.monotonic()
        found = reader.read()
        assert time.monotonic() - began < 5
    assert ("default", "queued") not in _tasks(found)
    assert _tasks(found)["default", "running"] == 0
    assert _tasks(reader.read())["default", "queued"] == 0


def test_the_statement_itself_is_bounded(store: Store) -> None:
    locker = store.connect()
    with locker.transaction():
        locker._driver.run("lock table deadsure.unknowns in access exclusive mode")
        with pytest.raises(StatementRefused, match="statement timeout"):
            figures.unknown(store.connection, 0.1)
    assert figures.unknown(store.connection, 1.0) == []


def test_more_rows_than_there_is_room_for_are_added_up() -> None:
    memory = MetricsMemory(seats=1, apis=1)
    rows = [Row((f"queue-{number}", "queued"), 1, float(number)) for number in range(shown.MOST_ROWS + 50)]
    shown.write(memory, "queued", rows)
    found = shown.read(memory)["queued"].rows
    assert len(found) == shown.MOST_ROWS + 1
    assert found[-1] == Row(("other", "queued"), 50, float(shown.MOST_ROWS + 49))


def _tasks(found: Scrape) -> dict[tuple[str, ...], float]:
    return _values(found, "deadsure_tasks", "queue", "state")


def _unknown(found: Scrape) -> dict[tuple[str, ...], float]:
    return _values(found, "deadsure_unknown_tasks", "kind", "needs")


def _oldest(found: Scrape) -> dict[str, float]:
    return {state: age for (_, state), age in _values(found, "deadsure_oldest_task_seconds", "queue", "state").items()}


def _values(found: Scrape, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """As Scrape.by, with the zeros."""
    own = [(dict(pairs), value) for (series, pairs), value in found.values.items() if series == name]
    return {tuple(pairs[label] for label in labels): value for pairs, value in own}
