"""A pool of the demo application, the ledger it books with, and a real Prometheus that reads it as we ship it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deadsure.drills.ledger_process import LedgerProcess
from deadsure.runtime import db

from . import metrics, prometheus
from .command import environment
from .pool import Pool, new_runtime_dir
from .rules import CONFIG, RULES
from .wait import wait_until

#: How often Prometheus reads the pool, and judges its rules, unless something else is said: seconds.
EVERY = 0.5


@dataclass
class Watched:
    """The pool, its ledger, the server that reads the pool, and since when (Unix time)."""

    pool: Pool
    ledger: LedgerProcess
    prometheus: prometheus.Prometheus
    every: float = EVERY
    began: float = field(default_factory=time.time)

    # --- what is done

    def have_the_ledger_lie(self) -> str:
        """The id of a transfer, unknown because its receipt was for something else. Later the truth is told."""
        self.ledger.kill()
        self.ledger.start("wrong-fingerprint")
        transfer = self.pool.submit("ledger.transfer", {"account": "a", "amount": 5})
        self.pool.wait_for(transfer, "unknown")
        self.ledger.kill()
        self.ledger.start("contract")
        return transfer

    def work(self) -> None:
        """Tasks that succeed, fail, are canceled, and kill their worker."""
        pool = self.pool
        tasks = [pool.submit("noop") for _ in range(40)]
        tasks.append(pool.submit("text.analyze", {"text": "to be"}))
        tasks.append(pool.submit("ledger.transfer_blind", {"account": "b", "amount": 1}))
        for task in tasks:
            pool.wait_for(task, "succeeded")
        pool.wait_for(pool.submit("text.analyze_file", {"path": "/nonexistent"}), "failed")
        pool.wait_for(pool.submit("crash", {"signal": "SIGSEGV"}), "failed")
        later = pool.submit("noop", run_at="2100-01-01T00:00:00Z")
        assert pool.post(f"/tasks/{later}/cancel").body["state"] == "canceled"

    def kill(self) -> str:
        """The id of a task of which nobody knows whether it happened: its worker was killed while it slept."""
        task = self.pool.submit("sleep", {"seconds": 600})
        victim = wait_until(lambda: self._holder(task), "a worker has the task")
        busy = 'deadsure_workers{state="busy"} > 0'
        wait_until(lambda: self.prometheus.now(busy), "Prometheus has seen a busy worker", 30)
        os.kill(victim, signal.SIGKILL)
        self.pool.wait_for(task, "unknown")
        return task

    def _holder(self, task: str) -> int:
        workers = self.pool.get("/workers").body["workers"]
        return next((worker["pid"] for worker in workers if worker["task"] == task), 0)

    # --- what is seen

    def exported(self) -> str:
        """What GET /metrics says now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.pool.port}/metrics", timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    def labels(self) -> dict[str, set[str]]:
        """The labels of everything that it exports now; a histogram's parts each under their own name."""
        found: dict[str, set[str]] = {}
        for name, pairs in metrics.parse(self.exported()).values:
            found.setdefault(name, set()).update(label for label, _ in pairs)
        return found

    def seen(self, expression: str, step: float | None = None) -> list[prometheus.Series]:
        """The values of an expression from the start until now, every `step` seconds."""
        return self.prometheus.range(expression, self.began, time.time(), step or self.every)


@contextmanager
def watched(
    database: db.Settings, folder: Path, *, rules: str | None = None, every: float = EVERY, workers: int = 3
) -> Iterator[Watched]:
    """All of them, running, with the pool's series in Prometheus already. `rules` in place of the shipped ones."""
    with ExitStack() as stack:
        ledger = stack.enter_context(LedgerProcess(folder / "book", env=environment()))
        runtime_dir = new_runtime_dir()
        stack.callback(shutil.rmtree, runtime_dir, ignore_errors=True)
        variables = {"DEADSURE_LEDGER_URL": ledger.url}
        pool = Pool(database, runtime_dir, app="deadsure.drills.demo:app", workers=workers, environment=variables)
        stack.callback(pool.close)
        pool.start(ready=False)
        server = stack.enter_context(prometheus.running(_config(folder, pool.port, rules, every), folder))
        wait_until(pool.is_ready, "the pool is ready", 30)
        # A counter is seen to rise only from a first sample on.
        both = "deadsure_unknown_tasks and on () deadsure_tasks_finished_total"
        wait_until(lambda: server.now(both), "Prometheus has read the pool", 30)
        yield Watched(pool, ledger, server, every)


def _config(folder: Path, port: int, rules: str | None, every: float) -> Path:
    """The shipped configuration, but for where the pool is and how often it is read."""
    text = CONFIG.read_text().replace("127.0.0.1:8470", f"127.0.0.1:{port}")
    text = re.sub(r"(_interval|_timeout): \d+s", rf"\1: {int(every * 1000)}ms", text)
    (folder / RULES.name).write_text(RULES.read_text() if rules is None else rules)
    made = folder / CONFIG.name
    made.write_text(text)
    return made
