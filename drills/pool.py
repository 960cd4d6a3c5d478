"""A small pool of the drill's own: `deadsure serve` as a child process, on the drill's queue, under the drill's name.

Everything it starts dies with it: the supervisor with this process, its children with the supervisor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from .plan import AFTER_SENDING, SHORT_LEASE, VARIABLE, Orders

_APP = "deadsure.drills.drilled:app"
#: What a service manager means for another process.
_NOT_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "DEADSURE_POOL_STOP_TIMEOUT", "DEADSURE_LEDGER_URL")
_PATIENCE = 20.0


@dataclass(slots=True)
class DrillPool:
    """The pool of one drill. `variables` is the environment that configures its database."""

    orders: Orders
    folder: Path
    variables: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    _runtime_dir: Path = field(default_factory=Path)

    def start(self, *, armed: bool, anew: bool = True) -> None:
        """Start it. `armed`: the first worker at the window waits there. `anew`: with another lock than before."""
        if anew:
            self._runtime_dir = Path(mkdtemp(prefix="pool-", dir=self.folder))
        words = ["--owner", str(os.getpid())]
        if armed and self.orders.plan.attempt == 1:  # later attempts are armed by the application
            words += ["--drill", self.orders.plan.window, self.orders.report]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "deadsure", "serve", *words],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / "log"

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

    def _environment(self) -> dict[str, str]:
        plan = self.orders.plan
        lease, renew = (SHORT_LEASE, 0.5) if plan.confirm == "lease" else (60.0, 5.0)
        one = plan.attempt > 1 and plan.window not in AFTER_SENDING
        settings = {
            "APP": _APP,
            "APP_DIR": str(self.folder),
            "POOL_NAME": plan.name,
            "POOL_QUEUES": plan.name,
            "POOL_WORKERS": "1" if one else "2",
            "POOL_LEASE": f"{lease:g}",
            "POOL_RENEW_EVERY": f"{renew:g}",
            "POOL_POLL_INTERVAL": "0.1",
            "POOL_DRAIN_TIMEOUT": "10",
            "POOL_RUNTIME_DIR": str(self._runtime_dir),
            "HTTP_BIND": "127.0.0.1:0",
            "HTTP_PROCESSES": "1",
        }
        kept = {name: value for name, value in self.variables.items() if name not in _NOT_OURS}
        ours = {f"DEADSURE_{name}": value for name, value in settings.items()}
        return {**kept, **ours, VARIABLE: self.orders.text()}
