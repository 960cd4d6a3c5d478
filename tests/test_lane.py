"""A lane to the database: it repeats what may be repeated, and never past its deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from deadsure.httpapi.lane import Lane
from deadsure.runtime import db
from deadsure.runtime.errors import DatabaseUnavailable, InDoubt
from deadsure.runtime.store import read


def _ends(lane: Lane, deadline: float, work: object = read.ping) -> None:
    """Run `work` on the lane in a thread that is not waited for longer than a hang would take."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lane.do, work, deadline).result(10)  # type: ignore[arg-type]


@pytest.fixture
def lane(database: db.Settings) -> Iterator[Lane]:
    made = Lane(database, "test")
    yield made
    if made._connection is not None:
        made._connection.close()


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
