"""One drill from end to end: start, submit, wait for the window, kill, wait until all has come to rest, read, remove.

Every waiting is for a fact, with a deadline. Nothing is left behind: processes, files, rows.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar
from uuid import UUID

from ..runtime import db
from ..runtime.db import Connection, Settings
from ..runtime.errors import DeadsureError, StatementRefused, UnknownKind
from ..runtime.ids import uuid7
from ..runtime.store import cancel, drill, submit
from ..runtime.store.submit import Submission
from . import facts as reading
from . import nemesis
from .facts import Facts, TaskFacts
from .ledger_process import LedgerProcess
from .modes import contract_of
from .plan import AFTER_SENDING, Orders, Plan
from .pool import DrillPool

T = TypeVar("T")
PAYLOAD = {"account": "drill", "amount": 5}
_SOON = 30.0
_SETTLED = 60.0
_LOOK_EVERY = 0.02
_SEND_AGAIN = "40001"


class DrillFailed(DeadsureError):
    """The drill could not be carried out, so it says nothing about what was drilled."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where drills are held: the database, and the environment that configures it for a pool."""

    database: Settings
    variables: Mapping[str, str]
    tell: Callable[[str], None]
    keep: bool = False


def run(site: Site, plan: Plan) -> Facts:
    """Carry out this plan and return the facts. Raises DrillFailed or StoreError."""
    connection = db.connect(site.database, f"deadsure {plan.name}")
    folder = Path(mkdtemp(prefix=f"deadsure-{plan.name}-"))
    try:
        ledger = LedgerProcess(folder / "ledger.jsonl", plan.provider, env=site.variables)
        with ledger, _pool(site, plan, ledger, folder) as pool:
            return _Drill(site, plan, connection, ledger, pool).run()
    finally:
        connection.close()
        _tidy(site, plan, folder)


def _tidy(site: Site, plan: Plan, folder: Path) -> None:
    """Remove its files and rows. On a connection of its own: an interrupt may have broken the drill's."""
    if site.keep:
        site.tell(f"kept: the tasks in the queue {plan.name}, and {folder}")
        return
    shutil.rmtree(folder, ignore_errors=True)
    connection = db.connect(site.database, f"deadsure {plan.name}")
    try:
        drill.remove(connection, plan.name, plan.name, [plan.transfer, plan.canary])
    finally:
        connection.close()


@contextmanager
def _pool(site: Site, plan: Plan, ledger: LedgerProcess, folder: Path) -> Iterator[DrillPool]:
    pool = DrillPool(Orders(plan, ledger.url, str(folder / "report")), folder, site.variables)
    try:
        yield pool
    except DrillFailed:
        for text in pool.log.read_text(errors="replace").splitlines()[-20:] if pool.log.exists() else []:
            site.tell(f"  | {text}")
        raise
    finally:
        if not pool.ended:
            nemesis.kill_pool(pool)


@dataclass(slots=True)
class _Drill:
    """One drill under way."""

    site: Site
    plan: Plan
    connection: Connection
    ledger: LedgerProcess
    pool: DrillPool

    def run(self) -> Facts:
        self.site.tell(f"starting a pool on the queue {self.plan.name}")
        self.pool.start(armed=True)
        task = self._submit(self.plan.transfer, PAYLOAD)
        killed_at = self._harm(task, last=self.plan.deaths == 1)
        for left in reversed(range(self.plan.deaths - 1)):
            self._harm(task, last=left == 0)
        self._wait(lambda: self._now(task).settled, "the task has come to rest", _SETTLED)
        canary = self._canary()
        if self.pool.stop() != 0:
            raise DrillFailed("the pool did not end in good order; the facts may not be final")
        found = self._now(task)
        history = self.ledger.history
        return reading.collect(task, self.plan.window, nemesis.SIGNAL.name, found, history, killed_at, canary)

    # --- the steps

    def _submit(self, kind: str, payload: dict[str, object]) -> UUID:
        """Submit it, as soon as a worker has registered the kind."""
        submission = Submission(uuid7(), kind, json.dumps(payload))

        def accepted() -> bool:
            try:
                return not isinstance(submit.submit(self.connection, [submission])[0], UnknownKind)
            except StatementRefused as error:
                if error.sqlstate != _SEND_AGAIN:
                    raise
                return False  # the kind was registered while we asked

        self._wait(accepted, "a worker is ready")
        return submission.id

    def _reached(self, last: bool) -> int:
        """The pid of the worker that stands at the window. Unless it is the last one, the next will wait there too."""
        report = Path(self.pool.orders.report)
        self._wait(report.exists, f"a worker has come to {self.plan.window}")
        pid = int(report.read_text())
        if not last:
            report.unlink()
        return pid

    def _harm(self, task: UUID, *, last: bool) -> datetime:
        """Kill, once everything that shall be true at that moment is. Returns the database's time just before."""
        plan, pid = self.plan, self._reached(last)
        if plan.window in AFTER_SENDING:
            self._wait(lambda: bool(self.ledger.history.effects), "the ledger has done it")
        if plan.provider == "forgets":
            self._wait(lambda: self._forgotten(task), "the ledger has forgotten the key")
        if plan.cancel:
            cancel.cancel(self.connection, task, plan.name)
        killed_at = self._now(task).now
        whom = f"worker {pid}" if plan.confirm == "exit" else f"the pool of supervisor {self.pool.pid}"
        self.site.tell(f"kill -9 at {plan.window}: {whom}")
        if plan.confirm == "exit":
            nemesis.kill_worker(self.pool, pid)
        else:
            nemesis.kill_pool(self.pool)
            self.pool.start(armed=not last, anew=plan.confirm == "lease")
        return killed_at

    def _forgotten(self, task: UUID) -> bool:
        contract, found = contract_of(self.plan.provider), self._now(task)
        if contract is None or found.first_perform_at is None:
            return True
        return (found.now - found.first_perform_at).total_seconds() > contract.key_retention

    def _canary(self) -> str:
        """The state of one more task, submitted now: by its end the workers have looked at all there was to do."""
        task = self._submit(self.plan.canary, {})
        self._wait(lambda: self._now(task).settled, "the workers go on")
        return self._now(task).state

    # --- what they need

    def _now(self, task: UUID) -> TaskFacts:
        found = reading.of_task(self.connection, task)
        if found is None:
            raise DrillFailed("the drill's task has disappeared")
        return found

    def _wait(self, fact: Callable[[], T], what: str, seconds: float = _SOON) -> None:
        until = time.monotonic() + seconds
        while not fact():
            if self.pool.ended:
                raise DrillFailed(f"the drill's supervisor has ended; waited until {what}")
            if time.monotonic() > until:
                raise DrillFailed(f"waited {seconds:g} s in vain until {what}")
            time.sleep(_LOOK_EVERY)
