"""The demo application, and an example of one: small kinds that show what becomes of a task when its worker dies.

Run it with `deadsure up`; your own looks the same: an `App`, and functions that it collects.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from msgspec import Struct

from ..runtime.effects import Contract, Intent
from ..runtime.handlers import App, Context
from ..runtime.http_provider import HttpProvider

app = App()

#: Where the ledger is: `deadsure up` starts one and says so in this variable.
_LEDGER_URL = os.environ.get("DEADSURE_LEDGER_URL", "http://127.0.0.1:8471")
_CONTRACT = Contract(lookup=True, dedups_by_key=True, key_retention=86400.0, settle_after=5.0)
#: How long a transfer can ask the ledger to keep its answer: seconds, and time to spare until the call is given up.
_LATEST_ANSWER, _TIMEOUT = 50, 60.0
#: One ledger, of which one kind knows what it promises and the other does not.
_LEDGER = HttpProvider(_LEDGER_URL, name="ledger", contract=_CONTRACT, timeout=_TIMEOUT)
_LEDGER_BLIND = HttpProvider(_LEDGER_URL, name="ledger-blind", timeout=_TIMEOUT)

#: How often a sleeper looks whether it should stop: seconds.
_LOOK_EVERY = 0.05
_STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Text(Struct, forbid_unknown_fields=True):
    """The payload of `text.analyze`."""

    text: str


class File(Struct, forbid_unknown_fields=True):
    """The payload of `text.analyze_file`: a path on the worker's host, to UTF-8 text."""

    path: str


class Sleep(Struct, forbid_unknown_fields=True):
    """The payload of `sleep`. With `ignore_cancel` it sleeps on, as a handler does that never looks."""

    seconds: float
    ignore_cancel: bool = False


class Crash(Struct, forbid_unknown_fields=True):
    """The payload of `crash`: a signal by name (`SIGSEGV`) or by number (11)."""

    signal: str | int


class Transfer(Struct, forbid_unknown_fields=True):
    """The payload of `ledger.transfer`: how much to move to whom, in the smallest unit.

    `answer_after`: the ledger moves it at once, and keeps its answer for so many seconds. That is time for a kill.
    """

    account: str
    amount: int
    answer_after: int = 0


class Nothing(Struct):
    """The payload of `noop`: an object, whatever is in it."""


@app.task("text.analyze", on_death="fail")
def analyze(payload: Text) -> dict[str, int]:
    """White-space separated words, bytes of UTF-8, and code points."""
    text = payload.text
    return {"words": len(text.split()), "bytes": len(text.encode()), "runes": len(text)}


@app.task("text.analyze_file", on_death="fail")
def analyze_file(payload: File) -> dict[str, int]:
    """The same of a file's text. Fails when the file cannot be read or is not UTF-8."""
    return analyze(Text(Path(payload.path).read_bytes().decode()))


@app.task("sleep")
def sleep(payload: Sleep, ctx: Context) -> dict[str, float]:
    """Hold a worker for a while; a cancel request ends it early. `unknown` if its worker dies: it is the default."""
    if not 0 <= payload.seconds <= 1e6:
        raise ValueError("seconds must be from 0 to 1000000")
    until = time.monotonic() + payload.seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY))
        if not payload.ignore_cancel:
            ctx.raise_if_canceled()
    return {"slept": payload.seconds}


@app.task("crash", on_death="fail")
def crash(payload: Crash) -> None:
    """Die by this signal. One that kills nobody (SIGCHLD, say) makes it fail instead."""
    number = _signal(payload.signal)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE and SIGXFSZ
    os.kill(os.getpid(), number)
    raise RuntimeError(f"the signal {payload.signal} did not kill this process")


@app.task("noop", on_death="requeue", max_attempts=3)
def noop(payload: Nothing) -> None:
    """Do nothing, which can be done twice."""


@app.effect("ledger.transfer", provider=_LEDGER, max_attempts=3)
def transfer(payload: Transfer) -> Intent:
    """Money is moved by the ledger, outside our database. If the worker dies, the ledger says whether it was."""
    if payload.amount <= 0:
        raise ValueError("amount must be positive")
    if not 0 <= payload.answer_after <= _LATEST_ANSWER:
        raise ValueError(f"answer_after must be from 0 to {_LATEST_ANSWER} seconds")
    kept = {"answer_after": payload.answer_after} if payload.answer_after else {}
    return Intent(account=payload.account, amount=payload.amount, **kept)


@app.effect("ledger.transfer_blind", provider=_LEDGER_BLIND, max_attempts=3)
def transfer_blind(payload: Transfer) -> Intent:
    """The same through a provider without a contract: if the worker dies, only a person can find out."""
    return transfer(payload)


def _signal(wanted: str | int) -> signal.Signals:
    try:
        number = signal.Signals[wanted] if isinstance(wanted, str) else signal.Signals(wanted)
    except (KeyError, ValueError):
        raise ValueError(f"{wanted!r} is no signal; give a name such as SIGKILL, or a number") from None
    if number in _STOPPING:
        raise ValueError(f"{number.name} would stop the worker, not end it")
    return number
