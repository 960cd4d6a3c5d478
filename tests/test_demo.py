"""The demo application and the example: what each kind does, without a database."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from deadsure.drills import demo
from deadsure.runtime import executor, loading
from deadsure.runtime.handlers import App
from deadsure.runtime.model import Claimed, Outcome
from deadsure.runtime.states import OnDeath

ROOT = Path(__file__).parents[1]


def run(kind: str, payload: object, asks_to_stop: bool = False, app: App = demo.app) -> Outcome:
    now = datetime.now(UTC)
    task = Claimed(UUID(int=1), 1, kind, 1, None, "default", 0, now, now, json.dumps(payload))
    return executor.execute(app, task, lambda: asks_to_stop)


def test_the_kinds_are_declared_as_documented() -> None:
    assert {kind.name: (kind.on_death, kind.max_attempts) for kind in demo.app.kinds} == {
        "text.analyze": (OnDeath.FAIL, 1),
        "text.analyze_file": (OnDeath.FAIL, 1),
        "sleep": (OnDeath.UNKNOWN, 1),
        "crash": (OnDeath.FAIL, 1),
        "noop": (OnDeath.REQUEUE, 3),
        "ledger.transfer": (OnDeath.UNKNOWN, 3),
        "ledger.transfer_blind": (OnDeath.UNKNOWN, 3),
    }


@pytest.mark.parametrize(
    ("text", "words", "size", "runes"),
    [("", 0, 0, 0), ("größe 界", 2, 11, 7), (" a\tb\n\nc ", 3, 8, 8), ("😀", 1, 4, 1)],
)
def test_words_bytes_and_code_points_are_counted(tmp_path: Path, text: str, words: int, size: int, runes: int) -> None:
    (tmp_path / "text").write_bytes(text.encode())
    for outcome in (run("text.analyze", {"text": text}), run("text.analyze_file", {"path": str(tmp_path / "text")})):
        assert outcome.state == "succeeded"
        assert json.loads(outcome.result or "") == {"words": words, "bytes": size, "runes": runes}


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        ("text.analyze", {"text": 5}, "Expected `str`, got `int` - at `$.text`"),
        ("text.analyze", {}, "missing required field `text`"),
        ("text.analyze", {"text": "a", "texts": "b"}, "unknown field `texts`"),
        ("text.analyze", ["a"], "Expected `object`, got `array`"),
        ("text.analyze_file", {"path": "/nowhere/at/all"}, "FileNotFoundError"),
        ("sleep", {"seconds": "1"}, "Expected `float`, got `str` - at `$.seconds`"),
        ("sleep", {"seconds": -1}, "ValueError: seconds must be from 0 to 1000000"),
        ("crash", {"signal": "SIGNOTHING"}, "'SIGNOTHING' is no signal"),
        ("crash", {"signal": 0}, "0 is no signal"),
        ("crash", {"signal": "SIGSTOP"}, "SIGSTOP would stop the worker, not end it"),
        ("crash", {"signal": "SIGCHLD"}, "did not kill this process"),
    ],
)
def test_a_payload_that_cannot_be_meant_fails_with_its_reason(kind: str, payload: object, said: str) -> None:
    outcome = run(kind, payload)
    assert outcome.state == "failed"
    assert said in (outcome.reason or "")


def test_a_file_that_is_not_utf8_fails(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff")
    assert (run("text.analyze_file", {"path": str(tmp_path / "text")}).reason or "").startswith("UnicodeDecodeError")


def test_a_sleeper_sleeps_and_says_how_long() -> None:
    began = time.monotonic()
    assert run("sleep", {"seconds": 0.2}).result == '{"slept": 0.2}'
    assert time.monotonic() - began >= 0.2


def test_a_sleeper_gives_up_when_it_is_asked_to() -> None:
    began = time.monotonic()
    assert run("sleep", {"seconds": 600}, asks_to_stop=True).state == "canceled"
    assert time.monotonic() - began < 10


def test_a_sleeper_that_ignores_the_request_sleeps_on() -> None:
    assert run("sleep", {"seconds": 0.1, "ignore_cancel": True}, asks_to_stop=True).state == "succeeded"


@pytest.mark.parametrize(("wanted", "number"), [("SIGKILL", 9), (11, 11), ("SIGPIPE", 13), ("SIGABRT", 6)])
def test_a_crash_is_by_the_signal_that_was_asked_for(wanted: str | int, number: int) -> None:
    assert threading.active_count() == 1  # else a fork could hang
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        run("crash", {"signal": wanted})
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.Signals(number)


def test_nothing_comes_of_a_noop() -> None:
    assert run("noop", {}) == Outcome("succeeded", result="null")


@pytest.mark.parametrize("kind", ["ledger.transfer", "ledger.transfer_blind"])
def test_a_transfer_says_what_is_to_be_done_and_does_nothing(kind: str) -> None:
    say = demo.app.handler(kind).handler
    assert dict(say(demo.Transfer("ada", 5))) == {"account": "ada", "amount": 5}
    with pytest.raises(ValueError, match="positive"):
        say(demo.Transfer("ada", 0))


def test_the_example_application_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    app = loading.load("reports:app", ROOT / "examples")
    built = run("report.build", {"day": "2026-11-30", "rows": 3}, app=app)
    assert json.loads(built.result or "")["rows"] == 3
    assert run("report.build", {"day": "yesterday"}, app=app).state == "retry"
    assert run("report.build", {"day": "2026-11-30"}, asks_to_stop=True, app=app).state == "canceled"
    assert run("letter.print", {"to": "Ada"}, app=app).result == '{"printed": "Dear Ada"}'
