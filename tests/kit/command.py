"""The command `deadsure` as a user calls it: another process, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .pool import SOURCE

#: What would make a test depend on who runs it.
_STRANGE = ("DEADSURE_", "XDG_", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY")


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of a command: ours, without what would configure deadsure, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_STRANGE)}
    return kept | {"PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"} | dict(more)


def deadsure(
    *words: str, env: Mapping[str, str] = {}, cwd: Path | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "deadsure", *words],
        env=environment(env),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def start(*words: str, env: Mapping[str, str] = {}, log: Path) -> subprocess.Popen[bytes]:
    """Start the command; its output goes to the file `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "deadsure", *words],
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            process_group=0,
        )
