"""Hostile input over raw sockets: whatever comes, the api child answers with 4xx or closes, and stays as it was."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from kit import hostile
from kit.api import Api, fresh_store, running
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.faults

#: Requests under way at a time, and how often one of them is right.
AT_ONCE = 16
RIGHT_ONE_IN = 50
#: Seconds within which a slow connection must be closed, or answered with 408 and closed.
SLOWEST = 15.0
#: What the process may hold in all, and more after the rest than after the first part, in bytes: a peak of bodies of
#: 1 MiB, of which the allocator keeps something.
MOST_MEMORY, FLAT = 96 * 1024 * 1024, 32 * 1024 * 1024
#: The deadline that catches a hang.
PROMPT = 10.0
#: Connections to the database that may have been opened meanwhile; they are kept.
DATABASE = 5


@pytest.fixture(scope="module")
def store(server: EmbeddedPostgres) -> Iterator[Store]:
    with fresh_store(server) as opened:
        yield opened


@contextmanager
def unharmed(store: Store, folder: Path, **settings: object) -> Iterator[Api]:
    """An api child that must be the same process afterwards, with the descriptors it had before."""
    with running(store.settings, folder, **settings) as api:
        assert api.ask("GET", "/livez").status == 200
        files = descriptors(api.pid)
        yield api
        assert api.ask("GET", "/livez").status == 200
        wait_until(lambda: descriptors(api.pid) <= files + DATABASE, "its descriptors are closed again")
        print(f"descriptors: {files} before, {descriptors(api.pid)} after")


def test_malformed_requests_are_refused_and_leave_the_server_as_it_was(store: Store, tmp_path: Path) -> None:
    seed = int(os.environ.get("DEADSURE_SEED", "0")) or time.time_ns() % 2**32
    number = count(10_000, 1_000)
    print(f"DEADSURE_SEED={seed}")
    statuses: Counter[int] = Counter()
    with unharmed(store, tmp_path, body_timeout=0.5) as api:

        async def one(index: int) -> None:
            if index % RIGHT_ONE_IN == 0:
                assert await talk(api.port, hostile.post(hostile.TASK) + hostile.LAST) == [202, 200], index
                return
            what, sent = hostile.request(seed, index)
            try:
                statuses.update(await talk(api.port, sent + hostile.LAST))
            except AssertionError as error:
                raise AssertionError(f"{what}, number {index} of seed {seed}: {error}: {sent[:300]!r}") from None

        asyncio.run(at_most(AT_ONCE, one, range(number // 2)))
        memory = unshared(api.pid)
        asyncio.run(at_most(AT_ONCE, one, range(number // 2, number)))
        after = unshared(api.pid)
        print(f"memory: {memory >> 10} kB after the first half, {after >> 10} kB after the second")
        assert after < min(memory + FLAT, MOST_MEMORY)
    print(f"{number} requests, answers {sorted(statuses.items())}")
    assert all(status < 500 or status == 503 for status in statuses)


async def at_most(together: int, work: Callable[[int], Awaitable[None]], numbers: range) -> None:
    """Do the work for each number, so many at a time."""
    left = iter(numbers)

    async def do() -> None:
        for index in left:
            await work(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(together):
            group.create_task(do())


async def talk(port: int, sent: bytes) -> list[int]:
    """Send it and read until the server closes. Returns the statuses of all answers, each of which was checked."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        async with asyncio.timeout(SLOWEST):
            with suppress(ConnectionError):  # it may have closed before it read everything
                writer.write(sent)
                await writer.drain()
            with suppress(ConnectionError):
                while piece := await reader.read(65536):
                    got += piece
    except TimeoutError:
        raise AssertionError(f"still open after {SLOWEST} s, answered {got[:200]!r}") from None
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return list(answers(got))


HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n(.*?)\r\n\r\n", re.DOTALL)


def answers(got: bytes) -> Iterator[int]:
    """The status of each answer, one after the other. Raises AssertionError for what is none, or is no problem."""
    at = 0
    while at < len(got):
        found = HEAD.match(got, at)
        if found is None:
            assert b"\r\n\r\n" not in got[at:], f"this is no answer: {got[at : at + 200]!r}"
            return  # cut off when the connection was reset
        status, head = int(found[1]), found[2].lower()
        length = re.search(rb"^content-length: (\d+)", head, re.MULTILINE)
        size = int(length[1]) if length and not got.startswith(b"HTTP/1.1 ", found.end()) else 0
        at = found.end() + size
        if status >= 400 and at <= len(got) and size:
            problem = json.loads(got[found.end() : at])
            assert b"content-type: application/problem+json" in head
            assert (problem["status"], problem["type"][:21]) == (status, "urn:deadsure:problem:")
        yield status


# --- slow connections

POST = hostile.head(b"POST", b"/tasks", hostile.IS_JSON, b"Content-Length: 1000")
CHUNKED = hostile.head(b"POST", b"/tasks", hostile.IS_JSON, b"Transfer-Encoding: chunked")
GREEDY = hostile.head(b"GET", b"/openapi.json") * 2_000

#: What each sends at once, and then again and again: what, after how many seconds.
SLOW: dict[str, tuple[bytes, bytes, float]] = {
    "a body that never comes": (POST, b"", 1.0),
    "a body of a byte in ten seconds": (POST, b"{", 10.0),
    "half a head": (POST[:60], b"", 1.0),
    "a head of a byte in ten seconds": (POST[:60], b"x", 10.0),
    "chunks without end": (CHUNKED, b"1\r\n \r\n", 1.0),
    "answers that nobody takes": (GREEDY, b"\r\n", 1.0),
}


def test_slow_connections_are_ended_and_nobody_else_waits(store: Store, tmp_path: Path) -> None:
    # Those that take nothing keep the server at work until the kernel holds megabytes for each: a few are enough.
    slow = [what for what in SLOW for _ in range(5 if SLOW[what][0] is GREEDY else 59)]
    memory = []
    with unharmed(store, tmp_path) as api:
        for _ in range(count(4, 1)):
            ended, waited = asyncio.run(beside(api.port, slow))
            memory.append(unshared(api.pid))
            for what in SLOW:
                print(f"{what}: ended after {max(seconds for which, seconds in ended if which == what):.1f} s at most")
            print(f"a normal POST: {max(waited):.2f} s at most; memory: {memory[-1] >> 10} kB")
            assert len(ended) == 300
            assert max(seconds for _, seconds in ended) < SLOWEST
            assert max(waited) < PROMPT
    assert memory[-1] < min(memory[0] + FLAT, MOST_MEMORY)


async def beside(port: int, slow: list[str]) -> tuple[list[tuple[str, float]], list[float]]:
    """Open all of these, and send one normal POST a second until all are ended. How long each was open, and waited."""
    waited: list[float] = []
    async with asyncio.TaskGroup() as group:
        under_way = [group.create_task(until_ended(port, what)) for what in slow]
        while not all(task.done() for task in under_way):
            began = time.monotonic()
            assert await talk(port, hostile.post(hostile.TASK) + hostile.LAST) == [202, 200]
            waited.append(time.monotonic() - began)
            await asyncio.sleep(1)
    return [(what, task.result()) for what, task in zip(slow, under_way, strict=True)], waited


async def until_ended(port: int, what: str) -> float:
    """For how many seconds the server left this connection open; all it may have said is 408."""
    first, then, pause = SLOW[what]
    loop, began = asyncio.get_running_loop(), time.monotonic()
    with socket.socket() as slow:
        slow.setblocking(False)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(slow, ("127.0.0.1", port))
        sending = asyncio.create_task(_keep_sending(slow, first, then, pause))
        reading = None if first is GREEDY else asyncio.create_task(_until_closed(slow))
        tasks = {sending} if reading is None else {sending, reading}
        await asyncio.wait(tasks, timeout=2 * SLOWEST, return_when=asyncio.FIRST_COMPLETED)
        took = time.monotonic() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if reading is not None and not reading.cancelled():
        assert set(answers(reading.result())) <= {408}, what
    return took


async def _keep_sending(slow: socket.socket, first: bytes, then: bytes, pause: float) -> None:
    """Returns when the server has closed the connection."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        await loop.sock_sendall(slow, first)
        while True:
            await asyncio.sleep(pause)
            await loop.sock_sendall(slow, then)


async def _until_closed(slow: socket.socket) -> bytes:
    got = b""
    with suppress(ConnectionError):
        while piece := await asyncio.get_running_loop().sock_recv(slow, 65536):
            got += piece
    return got


def test_nothing_of_the_database_is_taken_before_a_body_is_complete(store: Store, tmp_path: Path) -> None:
    def sessions() -> int:
        return len(store.query("select 1 as one from pg_stat_activity where application_name ~ '^deadsure api'"))

    wait_until(lambda: sessions() == 0, "the sessions of the other tests are gone")
    with running(store.settings, tmp_path) as api, ExitStack() as opened:
        slow = [opened.enter_context(api.connect()) for _ in range(20)]
        for one in slow:
            one.sendall(hostile.post(hostile.TASK)[:-1])
        assert api.ask("GET", "/livez").status == 200  # later than those, so they have been read
        assert sessions() == 0
        slow[0].sendall(hostile.TASK[-1:])
        assert slow[0].recv(12) == b"HTTP/1.1 202"
        assert sessions() > 0


# --- the process as the kernel sees it


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def unshared(pid: int) -> int:
    """Bytes of memory that are this process's alone (USS)."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(kilobytes) for kilobytes in re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE))
