"""The driver sends what pg8000 would send, without its flushes, and reads what pg8000 would read."""

from __future__ import annotations

import io
from datetime import datetime
from uuid import uuid4

import pytest
from deadsure.runtime import db, driver
from deadsure.runtime.sql import Statement
from pg8000 import core
from pg8000.converters import string_array_in, timestamptz_in

PARAMETERS = ["text", None, "", "H\x00\x00\x00\x04", "ünï☃", "{\"a\",NULL}"]
TIMES = ["2026-11-30 17:20:02.12345+00", "2026-11-30 17:20:02+00", "1970-01-01 00:00:00.1+00", "0001-01-01 00:00:00+00"]
BEYOND = ["infinity", "-infinity", "10000-01-01 00:00:00+00", "0044-03-15 00:00:00+00 BC"]
ARRAYS = ["{}", "{a}", "{a,NULL,b}", '{"",x}', '{"NULL"}', '{"a,b","c\\"d"}', "{a\\\\b}", "{{a,b},{c,d}}", "{ünï,☃}"]


class Recording(core.CoreConnection):
    """pg8000 itself, with its flushes kept apart from what they follow."""

    def __init__(self) -> None:
        self._client_encoding = "utf8"
        self.sent: list[bytes] = []
        self._sock = self

    def write(self, data: bytes) -> None:
        self.sent.append(data)


def test_bind_and_execute_are_those_of_pg8000_without_the_flushes() -> None:
    theirs = Recording()
    theirs.send_BIND(b"name\0", PARAMETERS)
    theirs.send_EXECUTE()
    assert theirs.sent.count(core.FLUSH_MSG) == 2, "pg8000 has changed: is the subclass still needed?"
    without = b"".join(part for part in theirs.sent if part != core.FLUSH_MSG)
    assert driver.bind(b"name\0", PARAMETERS, "utf8") + core.EXECUTE_MSG == without


def test_a_prepared_statement_is_sent_in_one_write(database: db.Settings) -> None:
    connection = db.connect(database, "deadsure test driver")
    statement = Statement("twice", "select cast(:a as text), cast(:b as integer[]), cast(:a as text)")
    connection.run(statement, a="prepared", b=[])
    real = connection._driver._sock
    written: list[bytes] = []

    class Watched(io.RawIOBase):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            written.append(data)
            return int(real.write(data))

        def flush(self) -> None:
            real.flush()

        def read(self, size: int = -1) -> bytes:
            return bytes(real.read(size))

    connection._driver._sock = Watched()
    try:
        assert connection.run(statement, a="é", b=[1, 2]) == [["é", [1, 2], "é"]]
    finally:
        connection._driver._sock = real
        connection.close()
    assert len(written) == 1
    assert core.FLUSH_MSG not in written[0]


@pytest.mark.parametrize("text", TIMES)
def test_a_time_is_read_as_pg8000_reads_it(text: str) -> None:
    found = driver.read_timestamptz(text)
    assert isinstance(found, datetime)
    assert (found, found.utcoffset()) == ((theirs := timestamptz_in(text)), theirs.utcoffset())


@pytest.mark.parametrize("text", BEYOND)
def test_a_time_beyond_pythons_years_is_still_read(text: str) -> None:
    assert driver.read_timestamptz(text) == timestamptz_in(text)


@pytest.mark.parametrize("text", ARRAYS)
def test_a_list_is_read_as_pg8000_reads_it(text: str) -> None:
    assert driver.read_text_array(text) == string_array_in(text)


def test_the_database_spells_them_as_they_are_read_here(database: db.Settings) -> None:
    connection = db.connect(database, "deadsure test driver")
    words = ["", "NULL", "null", "a,b", 'a"b', "a\\b", "{a}", " a ", "ünï☃", None, "plain"]
    times = [datetime.fromisoformat(text) for text in TIMES]
    lists = "cast(:words as text[]), cast(:ids as uuid[]), cast(:numbers as bigint[]), cast(:flags as boolean[])"
    statement = Statement("lists", f"select {lists}, t from unnest(cast(:times as timestamptz[])) t")
    sent = {"words": words, "ids": [uuid4(), None], "numbers": [0, -1, None, 2**63 - 1], "flags": [True, None, False]}
    rows = connection.run(statement, times=times, **sent)
    connection.close()
    assert [row[:4] for row in rows] == [list(sent.values())] * len(times)
    assert [row[4] for row in rows] == times
