"""The catalogue and the page about it, the cells, and the tables of names."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable
from itertools import product

import pytest
from deadsure.metrics import catalogue, cells
from deadsure.metrics.answers import MOST, Answers
from deadsure.metrics.catalogue import CATALOGUE, MOST_KINDS, OTHER, Metric
from deadsure.metrics.collector import Collector, Pool
from deadsure.metrics.exposition import Exposition
from deadsure.metrics.memory import MetricsMemory
from deadsure.runtime.blackbox import PoolMemory
from kit.pages import Page
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

NAMES = [metric.name for metric in CATALOGUE]


@pytest.fixture
def memory() -> MetricsMemory:
    return MetricsMemory(seats=2, apis=1)


# --- the catalogue


def test_every_metric_stands_in_the_page_with_its_type_and_labels() -> None:
    told = re.findall(r"^\| `(deadsure_\w+)` \| (\w+) \| (.*?) \| .* \|$", Page.of("metrics.md").text, re.MULTILINE)
    assert told == [
        (metric.name, metric.type, ", ".join(f"`{label}`" for label in metric.labels) or "-") for metric in CATALOGUE
    ]


def test_names_are_unique_and_counters_end_in_total() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert [m.name for m in CATALOGUE if (m.type == "counter") != m.name.endswith("_total")] == []


def test_every_metric_of_the_catalogue_is_in_the_tuple() -> None:
    assert {value.name for value in vars(catalogue).values() if isinstance(value, Metric)} == set(NAMES)


# --- cells


def test_no_two_series_share_a_cell() -> None:
    taken: dict[int, str] = {}
    places: list[tuple[Metric, Callable[..., int], tuple[int, ...]]] = [
        *((metric, cells.of_pool, ()) for metric in cells.BLOCKS["pool"].metrics),
        *((metric, cells.of_provider, (n,)) for metric in cells.OF_PROVIDER for n in (0, 1, catalogue.MOST_PROVIDERS)),
        *((metric, cells.of_kind, (n,)) for metric in cells.OF_KIND for n in (0, 1, MOST_KINDS)),
    ]
    for metric, place, name in places:
        for values in product(*metric.values):
            start = place(metric, *name, *values)
            for cell in range(start, start + cells.width(metric)):
                assert 0 <= cell < cells.SIZE
                assert cell not in taken, f"{metric.name}{name}{values} and {taken[cell]}"
                taken[cell] = f"{metric.name}{name}{values}"


@pytest.mark.parametrize(("seconds", "bucket"), [(-1.0, 0), (0.0, 0), (0.001, 0), (0.0011, 1), (3600.0, 11), (1e7, 12)])
def test_a_bucket_holds_its_own_upper_bound(seconds: float, bucket: int) -> None:
    (index, one), (total, nanoseconds) = cells.observed(catalogue.TASK_RUN, 0, seconds)
    assert (index, one) == (bucket, 1)
    assert (total, nanoseconds) == (13, int(max(0.0, seconds) * 1e9))


# --- names


def test_a_name_keeps_its_place_and_is_seen_by_all(memory: MetricsMemory) -> None:
    assert [memory.kinds.index(name) for name in ("a", "b", "a", "ä" * 200)] == [0, 1, 0, 2]
    assert memory.kinds.all() == ["a", "b", "ä" * 200]
    assert memory.providers.all() == []


def test_names_beyond_the_bound_share_one_place(memory: MetricsMemory) -> None:
    found = [memory.kinds.index(f"kind-{number}") for number in range(500)]
    assert found == [*range(MOST_KINDS), *[MOST_KINDS] * (500 - MOST_KINDS)]
    assert len(memory.kinds.all()) == MOST_KINDS


def test_many_processes_that_add_names_at_once_agree(memory: MetricsMemory) -> None:
    memory.kinds.patience = 20.0
    children = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                names = [f"kind-{(number * 7 + n * 5) % 40}" for n in range(40)]
                places = [memory.kinds.index(name) for name in names]
                os._exit(int([memory.kinds.all()[place] for place in places] != names))
            finally:
                os._exit(99)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 8
    assert sorted(memory.kinds.all()) == sorted(f"kind-{n}" for n in range(40))


def test_many_threads_that_add_names_at_once_agree(memory: MetricsMemory) -> None:
    threads = [threading.Thread(target=lambda: [memory.kinds.index(f"k{n}") for n in range(40)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(memory.kinds.all()) == sorted(f"k{n}" for n in range(40))


def test_nobody_waits_for_who_holds_the_lock_and_stands_still(memory: MetricsMemory) -> None:
    memory.kinds.patience = 0.05
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(memory.lock, fcntl.LOCK_EX, 1, 0)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert memory.kinds.index("a") == MOST_KINDS
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    assert memory.kinds.index("a") == 0
    for descriptor in (*ready, *go):
        os.close(descriptor)


# --- the text


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_the_text_is_the_librarys_own(memory: MetricsMemory, accept: str) -> None:
    collector = Collector(Pool('the "pool"', 2, "1"), PoolMemory(2), memory)
    exposition = Exposition(collector)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, media_type = choose_encoder(accept)
    for number, name in enumerate(["plain", 'with "quotes" \\ and\nlines', "and\u2028more\x85", "x 1.0"]):
        index = memory.kinds.index(name)
        memory.seats[0].add(cells.of_kind(catalogue.FINISHED, index, "failed"), 10**number)
        for cell, n in cells.observed(catalogue.TASK_RUN, cells.of_kind(catalogue.TASK_RUN, index), 0.3 * 10**number):
            memory.seats[1].add(cell, n)
        for _ in range(2):  # a new form, and the same one again
            assert _still(exposition.text(accept)[0]) == _still(encode(registry))
        assert exposition.text(accept)[1] == media_type


def _still(text: bytes) -> list[str]:
    """The text's lines without those that differ from one moment to the next."""
    return [line for line in text.decode().split("\n") if "_age_seconds" not in line]


# --- answers by route, method and code


def test_answers_are_counted_by_what_is_known_of_them(memory: MetricsMemory) -> None:
    answers = _answers(memory)
    answers.count("/tasks", "GET", 200, 0.001)
    answers.count("/tasks", "GET", 200, 0.002)
    answers.count(None, "BREW", 404, 0.001)
    answers.count("/tasks/{id}", "GET", 0, 0.001)
    found = {labels: sum(values[:-1]) for labels, values in answers.series()}
    assert found == {
        ("/tasks", "GET", "200"): 2,
        ("unmatched", OTHER, "404"): 1,
        ("/tasks/{id}", "GET", OTHER): 1,
    }


def test_a_restarted_api_child_counts_on_in_the_same_series(memory: MetricsMemory) -> None:
    _answers(memory).count("/tasks", "GET", 200, 0.001)
    again = _answers(memory)
    again.count("/tasks", "GET", 200, 0.001)
    assert [sum(values[:-1]) for _, values in again.series()] == [2]


def test_there_are_never_more_series_of_answers_than_there_is_room_for(memory: MetricsMemory) -> None:
    answers = _answers(memory)
    for code in range(100, 1000):
        answers.count("/tasks", "GET", code, 0.001)
    found = {labels: sum(values[:-1]) for labels, values in answers.series()}
    assert len(found) == MOST
    assert found[OTHER, OTHER, OTHER] == 900 - (MOST - 1)


def _answers(memory: MetricsMemory) -> Answers:
    answers = memory.apis[0].answers
    assert answers is not None
    answers.take_over(("/tasks", "/tasks/{id}"))
    return answers
