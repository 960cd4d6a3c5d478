"""A real Prometheus watches a drill, with what we ship: which alerts fire and end, and whether every panel shows it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate
from kit import dashboard, postgres, promql
from kit.dashboard import EXPRESSIONS, PANELS, VARIABLES
from kit.pages import Page, Shell
from kit.pool import ROOT
from kit.prometheus import promtool
from kit.rules import ALERTS, RULES, sooner
from kit.wait import wait_until
from kit.watched import Watched, watched

pytestmark = pytest.mark.kills
RUNBOOK = Page.of("runbook.md")
#: How much sooner the two alerts of this drill fire than they do as they are shipped: 15 minutes are 5 seconds.
FASTER = 180.0


@dataclass
class Drill:
    """What was done, what was seen of it, and what the runbook's commands printed. `decided`: when, in Unix time."""

    watched: Watched
    server: EmbeddedPostgres
    dsn: str
    transfer: str
    unknown: str
    fired: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    decided: float = 0.0


@pytest.fixture(scope="module")
def drill(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """Work, a ledger that lies, a crash, a kill that leaves a task unknown, a long report; then the runbook."""
    folder = tmp_path_factory.mktemp("watched")
    with postgres.database(server) as address:
        settings = db.Settings(dsn.parse(address), statement_timeout=10.0)
        connection = db.connect(settings, "migrate")
        migrate.migrate(connection)
        connection.close()
        with watched(settings, folder, rules=sooner(FASTER, "DeadsureUnknownTooOld", "DeadsureOldTransaction")) as seen:
            transfer = seen.have_the_ledger_lie()
            seen.work()
            done = Drill(seen, server, address, transfer, seen.kill())
            with _long_report(server, postgres.database_name(address)):
                wait_until(lambda: _somebody_is_called(done), "both alerts fire", 40)
            _follow_the_runbook(done, folder)
            yield done


@contextmanager
def _long_report(server: EmbeddedPostgres, database: str) -> Iterator[None]:
    """A transaction that holds a snapshot."""
    with postgres.session(server, database) as report:
        report.run("begin isolation level repeatable read")
        report.run("select count(*) from deadsure.ready")
        yield
        report.run("commit")


def _somebody_is_called(drill: Drill) -> bool:
    drill.fired = drill.watched.prometheus.firing()
    kinds = [labels["kind"] for labels in drill.fired.get("DeadsureUnknownTooOld", [])]
    return "sleep" in kinds and "DeadsureOldTransaction" in drill.fired


def _follow_the_runbook(drill: Drill, folder: Path) -> None:
    """Type what the page says, in its order."""
    pool = drill.watched.pool
    here = f"http://127.0.0.1:{pool.port}"
    variables = {
        "DEADSURE_URL": here,
        "DEADSURE_DATABASE_DSN": drill.dsn,
        "DEADSURE_APP": pool.app,
        "DEADSURE_POOL_RUNTIME_DIR": str(pool.runtime_dir),
    }
    shell = Shell(folder, {"http://127.0.0.1:8470": here}, variables)
    for name, text in RUNBOOK.blocks("run").items():
        drill.printed[name] = shell.type(text)
        if name == "reconcile":
            pool.wait_for(drill.transfer, "succeeded")
        if name == "resolve":
            drill.decided = time.time()


def an_unknown_task_makes_its_alert_fire_and_its_decision_clears_it(drill: Drill) -> None:
    (fired,) = [labels for labels in drill.fired["DeadsureUnknownTooOld"] if labels["kind"] == "sleep"]
    assert fired == {"job": "deadsure", "kind": "sleep", "needs": "decision", "severity": "critical"}
    wait_until(lambda: "DeadsureUnknownTooOld" not in drill.watched.prometheus.firing(), "it is cleared")
    (alert,) = drill.watched.seen('ALERTS{alertname="DeadsureUnknownTooOld", alertstate="firing", kind="sleep"}')
    assert alert.samples[0][0] < drill.decided < alert.samples[-1][0] + 30


def an_old_transaction_makes_its_alert_fire_and_its_end_clears_it(drill: Drill) -> None:
    assert drill.fired["DeadsureOldTransaction"] == [{"job": "deadsure", "severity": "warning"}]
    wait_until(lambda: "DeadsureOldTransaction" not in drill.watched.prometheus.firing(), "it is cleared")


def no_other_alert_has_fired_and_every_rule_could_be_judged(drill: Drill) -> None:
    fired = {series.labels["alertname"] for series in drill.watched.seen('ALERTS{alertstate="firing"}')}
    # The ledger did lie. Whether the drill lasts until somebody is told of that depends on the machine.
    assert fired - {"DeadsureReceiptMismatch"} == {"DeadsureUnknownTooOld", "DeadsureOldTransaction"}
    health = {rule["name"]: rule["health"] for rule in drill.watched.prometheus.rules()}
    assert health == dict.fromkeys(ALERTS, "ok")


def the_runbooks_commands_do_what_it_says(drill: Drill) -> None:
    assert drill.unknown in drill.printed["first"]
    assert '"status":"ready"' in drill.printed["first"]
    assert " recovered  {" in drill.printed["unknown"]
    assert drill.printed["reconcile"].endswith(" looked up, 0 not\n")  # 0 when it was looked up by itself just before
    assert drill.printed["resolve"] == f"{drill.unknown} failed\n"
    assert "deadsure_build_info" in drill.printed["alive"]


def the_runbooks_sql_finds_what_it_is_about(drill: Drill) -> None:
    with postgres.session(drill.server, postgres.database_name(drill.dsn)) as session:
        found = {name: session.run(text) for name, text in RUNBOOK.blocks("sql").items()}
    assert found["mismatch"] != []
    assert all(row[4] == {"account": "a", "amount": 5} for row in found["mismatch"])
    assert ["crash", "SIGSEGV", "handling", "failed", 1] in found["deaths"]
    assert ["sleep", "SIGKILL", "handling", "unknown", 1] in found["deaths"]
    assert {row[0] for row in found["vacuum"]} >= {"tasks", "ready"}
    assert len(found["incarnations"]) == 1


def promtool_finds_nothing_wrong_with_what_is_exported(drill: Drill) -> None:
    promtool("check", "metrics", stdin=drill.watched.exported())


def every_metric_and_label_that_a_rule_or_panel_names_is_exported(drill: Drill) -> None:
    exported = drill.watched.labels()
    named = [*EXPRESSIONS, *(rule["expr"] for rule in ALERTS.values())]
    named += [variable["query"]["query"] for variable in VARIABLES if variable["type"] == "query"]
    assert [wrong for expression in named for wrong in promql.wrong(expression, exported)] == []


def every_metric_that_is_exported_is_used_or_explained(drill: Drill) -> None:
    page = ROOT / "docs" / "metrics.md"
    text = "\n".join([RULES.read_text(), *EXPRESSIONS, page.read_text() if page.exists() else ""])
    exported = {name for name in drill.watched.labels() if not name.endswith(("_bucket", "_sum", "_count"))}
    assert {name for name in exported if not re.search(rf"\b{name}(_bucket)?\b", text)} == set()


#: Panels about what this drill does not do, or not for sure: their lines may lie at 0.
QUIET = {
    "Refused finishes",
    "Claim conflicts",
    "Database connections",
    "Requests without a connection",
    "Deaths that are not settled",
    "Starts that failed",
    "Leases lost and pools swept",
    "Log lines dropped",
    "Dead rows",
}


def every_panel_shows_what_happened(drill: Drill) -> None:
    assert {panel["title"]: wrong for panel in PANELS for wrong in _wrong(panel, drill.watched)} == {}


def _wrong(panel: dict[str, Any], watched: Watched) -> Iterator[str]:
    """What this panel does not show and should."""
    highest = 0.0
    for target in panel["targets"]:
        found = watched.seen(dashboard.asked(target["expr"], window=5, whole=time.time() - watched.began))
        numbers = [number for series in found for number in series.numbers]
        if not numbers:
            yield f"no data: {target['expr']}"
        highest = max([highest, *numbers])
        for series in found:
            dashboard.named(series, target["legendFormat"])
    if highest == 0 and panel["title"] not in QUIET:
        yield "nothing but zeros"


FACTS = (
    an_unknown_task_makes_its_alert_fire_and_its_decision_clears_it,
    an_old_transaction_makes_its_alert_fire_and_its_end_clears_it,
    no_other_alert_has_fired_and_every_rule_could_be_judged,
    the_runbooks_commands_do_what_it_says,
    the_runbooks_sql_finds_what_it_is_about,
    promtool_finds_nothing_wrong_with_what_is_exported,
    every_metric_and_label_that_a_rule_or_panel_names_is_exported,
    every_metric_that_is_exported_is_used_or_explained,
    every_panel_shows_what_happened,
)


def test_a_real_prometheus_sees_the_drill_as_it_happened(drill: Drill, subtests: pytest.Subtests) -> None:
    """All facts about one drill in one test: spread over several processes, each of them would hold its own."""
    for fact in FACTS:
        with subtests.test(fact.__name__):
            fact(drill)
