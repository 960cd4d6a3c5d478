"""A lane to the database: it repeats what may be repeated, and never past its deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from deadsure.httpapi.lane import Lane
from deadsure.runtime import db
from deadsure.runtime.errors import DatabaseUnavailable, InDoubt, StatementRefused
from deadsure.runtime.store import read


def _ends(lane: Lane, deadline: float, work: object = read.ping) -> None:
    """Run `work` on the lane in a thread that is not waited for longer than a hang would take."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lane.do, work, deadline).result(10)  # type: ignore[arg-type]


@pytest.fixture
def lane(database: db.Settings) -> Iterator[Lane]:
    made = Lane(database, "test")
    yield made
    made._sessions.close()


def test_a_lane_with_a_good_connection_and_no_time_left_gives_up(lane: Lane) -> None:
    _ends(lane, time.monotonic() + 5)
    with pytest.raises(DatabaseUnavailable, match="time was spent"):
        _ends(lane, time.monotonic() - 1)
    _ends(lane, time.monotonic() + 5)


def test_a_lane_that_only_ever_loses_answers_gives_up_at_the_deadline(lane: Lane) -> None:
    def lose(connection: db.Connection) -> None:
        connection.discard()
        raise InDoubt("lost")

    with pytest.raises(InDoubt):
        _ends(lane, time.monotonic() + 0.3, lose)


@pytest.mark.parametrize(
    "meanwhile", [DatabaseUnavailable("away"), StatementRefused("a lock", "55P03")], ids=["away", "locked"]
)
def test_a_doubt_is_settled_though_the_first_repeat_could_not_be_made(lane: Lane, meanwhile: Exception) -> None:
    answers: list[Exception | str] = [InDoubt("lost"), meanwhile, meanwhile, "there"]

    def work(_: db.Connection) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert lane.do(work, time.monotonic() + 5) == "there"


def test_a_doubt_stays_one_when_its_repeats_are_refused_or_cannot_be_made(lane: Lane) -> None:
    def refused_after(first: list[Exception], error: Exception) -> object:
        def work(_: db.Connection) -> None:
            raise first.pop() if first else error

        return work

    with pytest.raises(InDoubt):
        _ends(lane, time.monotonic() + 5, refused_after([InDoubt("lost")], StatementRefused("no such table", "42P01")))
    with pytest.raises(InDoubt):
        _ends(lane, time.monotonic() + 0.3, refused_after([InDoubt("lost")], DatabaseUnavailable("away")))


def test_that_a_repeat_was_refused_says_nothing_about_the_first(lane: Lane) -> None:
    told: list[Exception] = [InDoubt("lost"), StatementRefused("no", "23514")]

    def work(connection: db.Connection) -> None:
        raise told.pop(0)

    with pytest.raises(InDoubt):
        _ends(lane, time.monotonic() + 5, work)
    assert told == []
