"""`deadsure serve` as a drill's child process. What it starts dies with it, and it dies with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .plan import VARIABLE

#: What a service manager means for another process.
_NOT_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "DEADSURE_POOL_STOP_TIMEOUT", "DEADSURE_LEDGER_URL")
_PATIENCE = 20.0


class Served:
    """What every pool of a drill can be asked. `process` is the supervisor's."""

    __slots__ = ()
    process: subprocess.Popen[bytes] | None

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self.process is not None
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Whether the supervisor has ended."""
        return self.process is None or self.process.poll() is not None

    def stop(self) -> int | None:
        """Have it drain and end: its exit code; None when it did not in time and was killed."""
        if self.process is None:
            return None
        self.process.terminate()
        try:
            return self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def launch(
    words: Sequence[str], environment: Mapping[str, str], log: Path, keep: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start one, with these options; what it prints is added to `log`, and it inherits the descriptors in `keep`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "deadsure", "serve", "--owner", str(os.getpid()), *words],
            env=environment,
            pass_fds=keep,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            process_group=0,
        )


def environment(variables: Mapping[str, str], settings: Mapping[str, str], orders: str) -> dict[str, str]:
    """Its environment: `variables`, the configuration in `settings`, and the orders for its application."""
    kept = {name: value for name, value in variables.items() if name not in _NOT_OURS}
    ours = {f"DEADSURE_{name}": value for name, value in settings.items()}
    return {**kept, **ours, VARIABLE: orders}
