"""An installed `deadsure`, tried as its user would for a moment: PostgreSQL, pool and API up, a task, down again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from .postgres import free_port

_DEADLINE = 60.0
_TEXT = "größe 界"
#: What the task must come to.
RESULT = {"bytes": 11, "runes": 7, "words": 2}


def clean_environment() -> dict[str, str]:
    """Ours, without anything that leads to a checkout or configures deadsure."""
    strange = ("PYTHON", "DEADSURE_", "XDG_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(strange)}


def run_a_task(program: Path) -> object:
    """`up`, `submit --wait`, `show`, Ctrl-C. Returns the task's result; AssertionError with what was printed."""
    folder = Path(tempfile.mkdtemp(prefix="deadsure-smoke-"))
    folder.chmod(0o755)  # as root, PostgreSQL runs as somebody else
    bind = f"127.0.0.1:{free_port()}"
    try:
        with (folder / "log").open("wb") as log:
            words = [program, "up", "--data", folder / "data", "--bind", bind, "--workers", "1"]
            up = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=clean_environment()
            )
        try:
            _wait_until_ready(up, folder / "log")
            result = _one_task(program, f"http://{bind}")
            up.send_signal(signal.SIGINT)
            code = up.wait(_DEADLINE)
            assert code == 0, f"up ended with {code}: {_printed(folder / 'log')}"
            return result
        finally:
            if up.poll() is None:
                up.terminate()
                up.wait(_DEADLINE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one_task(program: Path, url: str) -> object:
    done = said(program, "submit", "text.analyze", json.dumps({"text": _TEXT}), "--wait", "30", "--url", url)
    shown = json.loads(said(program, "show", done.split()[0], "--json", "--url", url))
    assert shown["state"] == "succeeded", shown
    return shown["result"]


def said(program: Path, *words: str) -> str:
    """What the program printed, run from a folder that is nothing to it."""
    run = subprocess.run(
        [program, *words], capture_output=True, text=True, env=clean_environment(), cwd="/", timeout=120, check=False
    )
    assert run.returncode == 0, f"{words}: {run.stderr}"
    return run.stdout.strip()


def _wait_until_ready(up: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _DEADLINE
    while "deadsure is ready" not in _printed(log):
        assert up.poll() is None, f"up ended with {up.returncode}: {_printed(log)}"
        assert time.monotonic() < until, f"not ready in {_DEADLINE} s: {_printed(log)}"
        time.sleep(0.05)


def _printed(log: Path) -> str:
    return log.read_text(errors="replace")
