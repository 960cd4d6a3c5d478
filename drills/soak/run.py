"""One soak from end to end: start, traffic, harm, rest, read, judge, remove.

Every waiting is for a fact, with a deadline. Nothing is left behind: processes, files, rows. When something was
violated, or cannot be judged, the files stay, and it is said where.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec

from ...runtime import db
from ...runtime.db import Connection, Settings
from ...runtime.store import drill
from ..kill import DrillFailed
from ..ledger_process import LedgerProcess
from . import gathering, judge, proxy_process, wire
from .clients import Clients
from .facts import Facts
from .figures import Figures
from .gathering import Clock, Watcher
from .harm import Nemesis
from .history import History
from .judge import Judgement
from .person import Person
from .plan import MODES, POOLS, SoakOrders, SoakPlan, draw
from .pools import DSN, SoakPool
from .proxy_process import ProxyProcess

_READY = 60.0
#: Seconds in which everything must have come to rest once the harm has ended.
_REST = 150.0
_LOOK_EVERY = 0.05
#: For reading and removing what has grown in an hour.
_PATIENT = 120.0
#: How likely a ledger's request or lookup meets a fault, and the longest that it takes otherwise, in seconds.
LEDGER = {"faults": "0.06", "delay": "0.2"}


@dataclass(frozen=True, slots=True)
class SoakSite:
    """Where it takes place. `crash` brings the database down and up again; None where it is not ours."""

    database: Settings
    variables: Mapping[str, str]
    tell: Callable[[str], None]
    crash: Callable[[], None] | None = None
    keep: bool = False

    @property
    def patient(self) -> Settings:
        """The same database, for statements that take long."""
        return replace(self.database, statement_timeout=_PATIENT)


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of it."""

    kills: int
    seconds: float
    facts: Facts
    faults: list[dict[str, Any]]
    figures: list[str]
    judgement: Judgement


def run(site: SoakSite, plan: SoakPlan) -> Ended:
    """Carry out this plan and judge it. Raises DrillFailed, ConfigurationError or StoreError."""
    folder = Path(mkdtemp(prefix=f"deadsure-{plan.name}-"))
    keep = site.keep
    try:
        ended = _run(site, plan, folder)
        keep = keep or ended.judgement.value is not True
        return ended
    except DrillFailed:
        keep = True
        raise
    finally:
        _tidy(site, plan, folder, keep)


def _tidy(site: SoakSite, plan: SoakPlan, folder: Path, keep: bool) -> None:
    """Files, unless they may be needed to understand what happened; rows, unless `--keep` was given."""
    if keep:
        site.tell(f"kept: {folder}" + (f", and the tasks in the queue {plan.name}" if site.keep else ""))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if site.keep:
        return
    connection = db.connect(site.patient, f"deadsure {plan.name}")
    try:
        drill.remove_decisions(connection, list(plan.kinds))
        drill.remove(connection, plan.name, plan.name, list(plan.kinds))
    finally:
        connection.close()


def _run(site: SoakSite, plan: SoakPlan, folder: Path) -> Ended:
    with ExitStack() as stack:
        proxy = stack.enter_context(proxy_process.running(plan, site.database.dsn, folder / "proxy.jsonl"))
        ledgers = {mode: stack.enter_context(_ledger(site, plan, folder, mode)) for mode in MODES}
        pools = stack.enter_context(_pools(site, plan, folder, proxy, ledgers))
        soak = _Soak(site, plan, folder, proxy, ledgers, pools)
        return soak.run()


def _ledger(site: SoakSite, plan: SoakPlan, folder: Path, mode: str) -> LedgerProcess:
    options = {**LEDGER, "seed": f"{plan.seed} {mode}"}
    return LedgerProcess(folder / f"{mode}.jsonl", mode, options=options, env=site.variables)


@contextmanager
def _pools(
    site: SoakSite, plan: SoakPlan, folder: Path, proxy: ProxyProcess, ledgers: Mapping[str, LedgerProcess]
) -> Iterator[list[SoakPool]]:
    urls = {mode: ledger.url for mode, ledger in ledgers.items()}
    orders = SoakOrders(plan, urls, str(folder / "runs.jsonl"))
    variables = {**site.variables, DSN: proxy.dsn}
    pools = [SoakPool(number, orders, folder, variables) for number in range(1, POOLS + 1)]
    try:
        for pool in pools:
            pool.start()
        yield pools
    except DrillFailed:
        for pool in pools:
            last = pool.log.read_text(errors="replace").splitlines()[-10:] if pool.log.exists() else []
            for text in last:
                site.tell(f"  | {text}")
        raise
    finally:
        for pool in pools:
            pool.close()
            pool.listener.close()


@dataclass(slots=True)
class _Soak:
    """One soak under way."""

    site: SoakSite
    plan: SoakPlan
    folder: Path
    proxy: ProxyProcess
    ledgers: Mapping[str, LedgerProcess]
    pools: list[SoakPool]
    doubts: list[str] = field(default_factory=list)

    def run(self) -> Ended:
        began = time.monotonic()
        clock = self._clock()
        self._wait_until_ready()
        history = History(self.folder / "history.jsonl")
        watcher = Watcher(self.site.database, self.plan, self.doubts)
        ports = [pool.port for pool in self.pools]
        clients = Clients(self.plan, ports, history, lambda: watcher.backlog, self.doubts)
        person = Person(clients, self._books(), self.folder / "runs.jsonl", self.plan.dice("person"))
        nemesis = Nemesis(self.pools, self.ledgers, self.site.crash)
        try:
            for thread in (watcher, clients, person):
                thread.start()
            figures = self._harm(nemesis)
            seconds = time.monotonic() - began
            nemesis.wake()
            self._rest(clients, person)
            figures.look_if_due(1.0)
        finally:
            nemesis.wake()
            clients.stopping.set()
            person.stopping.set()
            watcher.stop()
        history.close()
        self._drain()
        facts = self._facts(clock.until(self._clock()), watcher, nemesis)
        judgement = judge.judge(facts)
        if judgement.value is not True:  # the rows will be removed, and somebody will want to understand this
            (self.folder / "facts.json").write_bytes(msgspec.json.encode(facts))
        return Ended(nemesis.kills, seconds, facts, gathering.faults(self.folder), figures.lines(), judgement)

    # --- the steps

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _READY
        for pool in self.pools:
            while wire.call(pool.port, "GET", "/readyz").status != 200:
                if pool.ended or time.monotonic() > until:
                    raise DrillFailed(f"waited {_READY:g} s in vain until pool {pool.number} is ready")
                time.sleep(_LOOK_EVERY)

    def _harm(self, nemesis: Nemesis) -> Figures:
        figures = Figures(self.pools)
        told = time.monotonic()
        for card in draw(self.plan, database=self.site.crash is not None):
            if nemesis.kills >= self.plan.kills:
                break
            figures.look_if_due(nemesis.kills / self.plan.kills)
            nemesis.strike(card)
            if time.monotonic() > told + 30:
                told = time.monotonic()
                self.site.tell(f"{nemesis.kills} of {self.plan.kills} kills")
            self._look_after_pools()
        return figures

    def _look_after_pools(self) -> None:
        """A supervisor that ended by itself was not to: that is a finding. It is started again all the same."""
        for pool in self.pools:
            if pool.ended:
                assert pool.process is not None
                self.doubts.append(f"the supervisor of pool {pool.number} ended with {pool.process.returncode}")
                pool.start()

    def _rest(self, clients: Clients, person: Person) -> None:
        """No more faults; what is under way comes to its end."""
        self.site.tell("no more harm; waiting until all has come to rest")
        self.proxy.no_more_faults()
        for ledger in self.ledgers.values():
            ledger.kill()
            ledger.start(options={})
        if not (person.stop(_READY) and clients.stop(_READY)):
            self.doubts.append("a client has not come to its end")
        until = time.monotonic() + _REST
        with self._connected() as connection:
            while (left := gathering.still_open(connection, self.plan)) > 0:
                if time.monotonic() > until:
                    self.doubts.append(f"{left} tasks have not come to rest in {_REST:g} s")
                    return
                time.sleep(_LOOK_EVERY * 4)

    def _drain(self) -> None:
        for pool in self.pools:
            if (code := pool.stop()) != 0:
                self.doubts.append(f"pool {pool.number} ended with {code}, and not in good order")

    def _facts(self, clock: Clock, watcher: Watcher, nemesis: Nemesis) -> Facts:
        with self._connected() as connection:
            return gathering.gather(
                connection, self.plan, self.folder, self._books(), clock, watcher.looks, nemesis.done, self.doubts
            )

    def _clock(self) -> Clock:
        with self._connected() as connection:
            return Clock.measured(connection)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A session with the database itself, past the proxy."""
        connection = db.connect(self.site.patient, f"deadsure {self.plan.name}")
        try:
            yield connection
        finally:
            connection.close()

    def _books(self) -> dict[str, Path]:
        """The ledgers' books by kind."""
        kinds = self.plan.kinds.items()
        return {name: self.ledgers[kind.mode].file for name, kind in kinds if kind.mode is not None}
