"""The ledger: cells and state agree, whatever moment its writer is killed at."""

from __future__ import annotations

import os
import random
import signal
import struct
import time

import pytest
from deadsure.metrics.journal import Blob
from deadsure.metrics.memory import MetricsMemory, Page
from kit.scale import count

_NUMBER = struct.Struct("<Q")


@pytest.fixture
def page() -> Page:
    return MetricsMemory(seats=1, apis=0).seats[0]


def test_cells_and_state_change_together(page: Page) -> None:
    page.ledger.post({3: 2, 5: 1}, b"one")
    page.ledger.post({3: 1}, b"two")
    page.ledger.post({5: 1})
    assert (page.cells[3], page.cells[5]) == (3, 2)
    assert page.take_over() == b"two"
    assert (page.cells[3], page.cells[5]) == (3, 2)


def test_what_was_begun_is_completed_once(page: Page) -> None:
    page.ledger.post({3: 2, 5: 1}, b"one")
    page.cells[5] = 0  # as if killed before the second cell was written
    assert page.take_over() == b"one"
    assert (page.cells[3], page.cells[5]) == (2, 1)
    assert page.take_over() == b"one"
    assert (page.cells[3], page.cells[5]) == (2, 1)


def test_a_new_page_has_no_state(page: Page) -> None:
    assert page.take_over() == b""


def test_more_than_there_is_room_for_is_counted_all_the_same(page: Page) -> None:
    page.ledger.post(dict.fromkeys(range(2000), 1), b"state")
    page.ledger.post(dict.fromkeys(range(2000), 1), b"x" * 20_000)
    assert set(page.cells[:2000].tolist()) == {2}
    assert page.take_over() == b""
    assert set(page.cells[:2000].tolist()) == {2}


def test_a_cell_that_is_full_stays_full(page: Page) -> None:
    page.ledger.post({3: 2**64 - 2}, b"state")
    page.ledger.post({3: 5})
    page.add(3, 2**40)
    assert page.cells[3] == 2**64 - 1
    assert page.take_over() == b"state"


def test_a_killed_writer_leaves_cells_that_agree_with_its_state(page: Page) -> None:
    """Each post adds the same to all cells and puts their new value into the state; the next writer goes on from it."""
    dice = random.Random(1)
    value = 0
    for _ in range(count(long=500, ci=50)):
        pid = os.fork()
        if pid == 0:
            _write_for_ever(page)
        time.sleep(dice.random() * 0.004)  # a moment at random is what this test is about
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        state = page.take_over()
        found = _NUMBER.unpack(state)[0] if state else 0
        assert page.cells[10:20].tolist() == [found] * 10
        assert found >= value
        value = found
    assert value > 100


def _write_for_ever(page: Page) -> None:
    state = page.take_over()
    value = _NUMBER.unpack(state)[0] if state else 0
    while True:
        value += 1
        page.ledger.post(dict.fromkeys(range(10, 20), 1), _NUMBER.pack(value))


def test_a_reader_never_sees_a_torn_blob() -> None:
    memory = memoryview(bytearray(Blob.size(1000)))
    blob = Blob(memory, 0, 1000)
    assert blob.read() is None
    blob.write(b"a" * 900)
    blob.write(b"b" * 10)
    newest = Blob.size(1000) // 2 * 0 + 20
    memory[newest] ^= 0xFF  # the newest copy, which stands first, is torn
    assert blob.read() == b"a" * 900
    assert not blob.write(b"c" * 1001)
