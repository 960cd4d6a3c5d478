"""A small pool of the drill's own, on the drill's queue, under the drill's name."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from .plan import AFTER_SENDING, SHORT_LEASE, Orders
from .served import Served, environment, launch

_APP = "deadsure.drills.drilled:app"


@dataclass(slots=True)
class DrillPool(Served):
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
        words: list[str] = []
        if armed and self.orders.plan.attempt == 1:  # later attempts are armed by the application
            words = ["--drill", self.orders.plan.window, self.orders.report]
        self.process = launch(words, self._environment(), self.log)

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / "log"

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
        return environment(self.variables, settings, self.orders.text())
