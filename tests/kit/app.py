"""The application that the tests' pools run: handlers that block, die and count on command."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from deadsure import App, Backoff, Call, Context, Contract, Intent, Receipt
from deadsure.runtime.ids import new_token, uuid7

app = App()


def _note(payload: dict[str, Any], context: Context, what: str) -> None:
    """Append one line to the file that the test named: O_APPEND keeps lines of many processes whole."""
    if "log" in payload:
        fd = os.open(payload["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{what} {context.task_id} {context.fence} {os.getpid()}\n".encode())
        os.close(fd)


def _block(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """Say that it is inside, then wait until the file `go` exists."""
    _note(payload, context, "start")
    go = Path(payload["go"])
    while not go.exists():
        select.select([], [], [], 0.01)  # not time.sleep: it is an hour long when faketime steps the clock
    _note(payload, context, "end")
    return {"attempt": context.attempt}


app.task("block.unknown", on_death="unknown")(_block)
app.task("block.fail", on_death="fail")(_block)
app.task("block.requeue", on_death="requeue", max_attempts=3)(_block)


@app.task("words", on_death="fail")
def words(payload: dict[str, Any], context: Context) -> dict[str, int]:
    _note(payload, context, "start")
    text = payload["text"]
    return {"words": len(text.split()), "bytes": len(text.encode()), "runes": len(text)}


@app.task("raise", on_death="fail")
def raises(payload: dict[str, Any]) -> dict[str, int]:
    counted = {"words": 99}
    raise ValueError(f"could not go on after {counted}")


@app.task("die", on_death="requeue", max_attempts=3)
def die(payload: dict[str, Any], context: Context) -> None:
    _note(payload, context, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task("note", on_death="requeue", max_attempts=20)
def note(payload: dict[str, Any], context: Context) -> int:
    _note(payload, context, "start")
    time.sleep(payload.get("seconds", 0))
    _note(payload, context, "end")
    return context.attempt


app.task("count.fail", on_death="fail")(note)
app.task("count.unknown", on_death="unknown")(note)


@app.task("async", on_death="fail")
async def asynchronous(payload: dict[str, Any]) -> str:
    return "awaited"


@app.task("return", on_death="fail")
def returns(payload: dict[str, Any]) -> Any:
    results = {"nul": "a\x00b", "surrogate": "\ud800", "nan": float("nan"), "none": None, "object": object()}
    return results[payload["what"]]


def _grandchildren(pids: str, count: int, life: str) -> None:
    """Start processes in sessions of their own, and write down their pids."""
    started = [subprocess.Popen(["sh", "-c", life], start_new_session=True) for _ in range(count)]
    Path(f"{pids}.new").write_text(" ".join(str(p.pid) for p in started))
    Path(f"{pids}.new").rename(pids)


@app.task("leave.behind", on_death="fail")
def leaves_behind(payload: dict[str, Any]) -> None:
    _grandchildren(payload["pids"], 2, f"sleep 1; echo late > {payload['file']}")
    time.sleep(60)


@app.task("leave.behind.long", on_death="fail")
def leaves_behind_long(payload: dict[str, Any]) -> None:
    _grandchildren(payload["pids"], 1, "sleep 60")
    time.sleep(60)


@app.task("daemonise", on_death="fail")
def daemonise(payload: dict[str, Any]) -> None:
    """Fork, without exec, a process that outlives everybody and keeps every descriptor."""
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid != 0:
            Path(f"{payload['pids']}.new").write_text(str(pid))
            Path(f"{payload['pids']}.new").rename(payload["pids"])
            os._exit(0)
        time.sleep(120)
        os._exit(0)
    time.sleep(60)


@app.task("orphan", on_death="fail")
def orphan(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    middle = os.fork()
    if middle == 0:
        _grandchildren(payload["pids"], 1, "sleep 60")
        os._exit(0)
    os.waitpid(middle, 0)
    return _block(payload, context)


@app.task("hold.interpreter", on_death="unknown")
def holds_the_interpreter(payload: dict[str, Any], context: Context) -> None:
    """Sleep in C without releasing the interpreter lock: no other thread of this process can run."""
    _note(payload, context, "start")
    ctypes.PyDLL(None).sleep(payload["seconds"])


@app.task("fork.and.return", on_death="unknown")
def forks_and_returns(payload: dict[str, Any], context: Context) -> str:
    """What no handler should do: the child comes back out of it as well."""
    os.fork()
    _note(payload, context, "end")
    return "returned"


@app.task("ids", on_death="fail")
def ids(payload: dict[str, Any]) -> dict[str, list[Any]]:
    numbers = range(payload["count"])
    return {
        "token": [new_token() for _ in numbers],
        "uuid": [str(uuid7()) for _ in numbers],
        "random": [random.random() for _ in numbers],
    }


class FileBank:
    """A provider that keeps what it did in a folder, one line an effect, so that it outlives every process."""

    timeout = 5.0

    def __init__(self, name: str, contract: Contract | None) -> None:
        self.name = name
        self.contract = contract

    def perform(self, call: Call) -> Receipt:
        folder = Path(str(call.intent["folder"]))
        _wait_for(folder / "perform")
        with (folder / "calls").open("a") as calls:
            calls.write(f"{call.key} {call.fence}\n")
        receipt = self.lookup(call)
        if receipt is None:
            with (folder / "effects").open("a") as effects:
                effects.write(f"{call.key}\n")
        if "block" in call.intent:
            while not Path(str(call.intent["block"])).exists():
                time.sleep(0.01)
        return Receipt("r-1", call.key, call.fingerprint, dict(call.intent))

    def lookup(self, call: Call) -> Receipt | None:
        effects = Path(str(call.intent["folder"])) / "effects"
        if not effects.exists() or call.key not in effects.read_text().split():
            return None
        return Receipt("r-1", call.key, call.fingerprint, dict(call.intent))


def _wait_for(gate: Path) -> None:
    """Wait as long as the gate is there but closed: a file `NAME.closed`. Says with `NAME.reached` that it waits."""
    while gate.with_suffix(".closed").exists():
        gate.with_suffix(".reached").touch()
        time.sleep(0.01)


def _intent(payload: dict[str, Any]) -> Intent:
    _wait_for(Path(payload["folder"]) / "intent")
    return Intent(payload)


_FULL = Contract(lookup=True, dedups_by_key=True, key_retention=3600, settle_after=0)
app.effect("pay", provider=FileBank("bank", _FULL), max_attempts=3)(_intent)
app.effect("pay.blind", provider=FileBank("blind", None))(_intent)


@app.task("flaky", on_death="fail", max_attempts=3, backoff=Backoff(first=0.05, factor=1))
def flaky(payload: dict[str, Any], context: Context) -> str:
    _note(payload, context, "start")
    if context.attempt <= payload["fail"]:
        raise RuntimeError(f"attempt {context.attempt}")
    return "at last"


@app.task("print", on_death="fail")
def prints(payload: dict[str, Any]) -> None:
    for _ in range(payload["lines"]):
        print("x" * 1000)
