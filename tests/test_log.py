"""The log: what children say and print, in one format, and never in anybody's way."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadsure.cli import log
from deadsure.runtime import events
from deadsure.supervisor import told
from deadsure.supervisor.output import Output, Relay
from kit.pool import Pool
from kit.store import Store
from kit.wait import wait_until

NewPool = Callable[..., Pool]


@pytest.fixture
def child() -> Iterator[Callable[[bytes], None]]:
    """A child's pipe: what is written into it passes through the relay of worker 3 to the listeners."""
    events.unsubscribe_all()
    read, write = os.pipe()
    os.set_blocking(read, False)
    relay = Relay(read, "worker-3")

    def prints(data: bytes) -> None:
        os.write(write, data)
        relay.drain()

    yield prints
    relay.close()
    os.close(write)
    events.unsubscribe_all()


def _lines(format: str, level: str = "info") -> list[str]:
    lines: list[str] = []
    log.subscribe(lines.append, level, format)
    return lines


def test_a_childs_lines_are_marked_with_where_they_came_from(child: Callable[[bytes], None]) -> None:
    lines = _lines("text")
    child(b"first\nsecond, not yet")
    child(b" whole\n\xff\n")
    assert lines == ["worker 3 | first", "worker 3 | second, not yet whole", "worker 3 | \\xff"]


def test_a_childs_events_become_ours(child: Callable[[bytes], None]) -> None:
    text, made = _lines("text"), _lines("json")
    child(_told("a finish was refused", task="t", fence=3, attempt=1))
    assert text[0].startswith("worker 3 | 20")
    assert text[0].endswith(" warning a finish was refused task=t fence=3 attempt=1")
    found = json.loads(made[0])
    assert found.pop("time")
    assert found == {
        "level": "warning", "event": "a finish was refused", "task": "t", "fence": 3, "attempt": 1,
        "process": "worker-3",
    }  # fmt: skip


def test_a_childs_events_go_by_the_level_and_its_prints_do_not(child: Callable[[bytes], None]) -> None:
    lines = _lines("text", "error")
    child(_told("the worker exits", why="told to") + b"printed\n")
    assert lines == ["worker 3 | printed"]


def test_whatever_code_prints_is_wrapped(child: Callable[[bytes], None]) -> None:
    lines = _lines("json")
    printed = [b'{"event": "forged"}', b"\x1enot JSON", b'\x1e["a list"]', b'\x1e{"no": "event"}', b"\xff\x00", b""]
    child(b"".join(line + b"\n" for line in printed))
    found = [json.loads(line) for line in lines]
    assert {entry["event"] for entry in found} == {"a child printed"}
    assert {entry["process"] for entry in found} == {"worker-3"}
    assert [entry["line"] for entry in found] == [line.decode("utf-8", "backslashreplace") for line in printed]


def test_a_json_line_fits_into_a_pipe_whole(child: Callable[[bytes], None]) -> None:
    lines = _lines("json")
    child(("\x01€" * 5000).encode() + b"\n")
    events.emit("a request hit a bug", error="\x01€" * 5000)
    assert max(len(line.encode()) for line in lines) < 4096
    assert "".join(json.loads(line)["line"] for line in lines[:-1]) == "\x01€" * 5000


def test_the_report_of_the_start_is_one_line_in_either_format() -> None:
    said = "recovered previous pool: failed=1 unknown=0 queued=2 proof=pool_lock"
    text: list[str] = []
    log.Log(text.append, "error", "text").say(said)
    made: list[str] = []
    log.Log(made.append, "error", "json").say(said)
    assert text == [said]
    found = json.loads(made[0])
    assert found.pop("time")
    assert found == {
        "level": "info", "event": "recovered previous pool", "failed": "1", "unknown": "0", "queued": "2",
        "proof": "pool_lock",
    }  # fmt: skip


def test_an_exception_that_nobody_caught_is_an_event() -> None:
    made: list[str] = []
    written = log.Log(made.append, "info", "json")
    try:
        raise KeyError("lost")
    except KeyError as error:
        written.crash(type(error), error, sys.exc_info()[2])
    found = json.loads(made[0])
    assert (found["level"], found["error"]) == ("error", "KeyError: 'lost'")
    assert "test_log.py" in found["at"]


def test_a_line_that_was_torn_does_not_spoil_the_next() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    output = Output(write, log.dropped("json"))
    while output.dropped == 0:
        output.write(json.dumps({"line": "x" * 4500}))  # longer than what a pipe takes whole
    os.read(read, 1 << 20)
    output.write(json.dumps({"line": "after"}))
    notice, after = [json.loads(line) for line in os.read(read, 1 << 20).splitlines() if line]
    assert (notice["event"], notice["lines"], after) == ("log lines were dropped", 1, {"line": "after"})
    os.close(read)
    os.close(write)


def _told(event: str, **fields: object) -> bytes:
    """What a child writes for an event."""
    read, write = os.pipe()
    kept = os.dup(2)
    os.dup2(write, 2)
    try:
        told.tell(event, fields)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(write)
    with os.fdopen(read, "rb") as said:
        return said.read()


# --- a whole pool


def test_every_line_of_a_pool_is_json(new_pool: NewPool, store: Store, tmp_path: Path) -> None:
    options = {"LOG_FORMAT": "json", "NONSENSE": "1"}
    pool = new_pool(options=options).start()
    pool.wait_for(pool.submit("print", {"lines": 3}), "succeeded")
    task = pool.submit("block.fail", {"go": str(tmp_path / "go"), "log": str(tmp_path / "log")})
    wait_until((tmp_path / "log").exists, "it is inside its handler")
    os.kill(pool.worker_pids()[0], signal.SIGKILL)
    pool.wait_for(task, "failed")
    lost = pool.submit("block.fail", {"go": str(tmp_path / "go"), "log": str(tmp_path / "log2")})
    wait_until((tmp_path / "log2").exists, "it is inside its handler")
    store.query("update deadsure.tasks set fence = fence + 1 where id = :id", id=lost)
    (tmp_path / "go").touch()
    wait_until(lambda: "a finish was refused" in pool.log, "it says so")
    assert pool.stop() == 0
    found: list[dict[str, Any]] = [json.loads(line) for line in pool.log.splitlines()]
    assert all(entry["time"] and entry["level"] and entry["event"] for entry in found)
    by_event = {entry["event"]: entry for entry in found}
    assert by_event["recovered previous pool"]["proof"] == "pool_lock"
    assert "DEADSURE_NONSENSE" in str([entry["event"] for entry in found if entry["level"] == "warning"])
    settled = by_event["a dead worker's task was settled"]
    assert (settled["task"], settled["fence"], settled["attempt"], settled["proof"]) == (task, 2, 1, "exit")
    refused = by_event["a finish was refused"]
    assert (refused["task"], refused["fence"], refused["attempt"], refused["process"]) == (lost, 1, 1, "worker-1")
    printed = [entry for entry in found if entry["event"] == "a child printed"]
    assert {entry["process"] for entry in printed} == {"worker-1"}
    assert sum(len(entry["line"]) for entry in printed) == 3000


def test_a_refused_start_is_json_too(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(options={"LOG_FORMAT": "json", "POOL_WORKERS": "1"})
    blocker = new_pool()
    blocker.port = pool.port
    blocker.start()
    pool.start(ready=False)
    assert pool.process is not None
    assert pool.process.wait(30) == 1
    [line] = pool.log.splitlines()
    found = json.loads(line)
    assert found["level"] == "error"
    assert "Address already in use; nothing was started" in found["event"]
