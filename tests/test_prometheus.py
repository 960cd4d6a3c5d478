"""What is shipped for Prometheus, against promtool. kills/test_watched_drill.py has it watch a real drill."""

from __future__ import annotations

import re
import time
from pathlib import Path

import yaml
from deadsure.metrics import catalogue, cells, collector, figures
from deadsure.metrics.collector import Collector
from deadsure.metrics.exposition import Exposition
from deadsure.metrics.memory import MetricsMemory
from deadsure.runtime.blackbox import PoolMemory
from kit.metrics import parse
from kit.pages import Page
from kit.prometheus import promtool
from kit.rules import ALERTS, CONFIG, RULES, TESTS

RUNBOOK = Page.of("runbook.md")


def test_promtool_finds_nothing_wrong_with_the_rules_and_the_configuration() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))
    assert "is valid" in promtool("check", "config", str(CONFIG))


def test_the_token_of_the_example_is_where_prometheus_wants_it(tmp_path: Path) -> None:
    text = re.sub(r"^(\s*)# (authorization:|  credentials_file:)", r"\1\2", CONFIG.read_text(), flags=re.MULTILINE)
    token = tmp_path / "deadsure.token"
    token.write_text("secret")
    (tmp_path / RULES.name).write_text(RULES.read_text())
    (tmp_path / CONFIG.name).write_text(text.replace("/etc/prometheus/deadsure.token", str(token)))
    assert yaml.safe_load(text)["scrape_configs"][0]["authorization"].keys() == {"credentials_file"}
    assert "is valid" in promtool("check", "config", str(tmp_path / CONFIG.name))


def test_every_rule_fires_when_it_should_and_not_otherwise() -> None:
    assert promtool("test", "rules", *map(str, TESTS)).count("SUCCESS") == len(TESTS)


def test_every_alert_is_tested_firing_and_silent() -> None:
    tests = [test for file in TESTS for test in yaml.safe_load(file.read_text())["tests"]]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(ALERTS)
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == set(ALERTS)


def test_every_alert_waits_a_while_and_says_how_bad_it_is_and_where_to_read_on() -> None:
    assert re.findall(r"^## (.*)$", RUNBOOK.text, re.MULTILINE) == list(ALERTS)
    for name, rule in ALERTS.items():
        assert re.fullmatch(r"[1-9]\d*[sm]", rule["for"]), name
        assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"}), name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        for part in ("**Means.**", "**Look at**", "**Do"):
            assert part in RUNBOOK.section(name), f"{name}: {part}"


def test_every_block_of_the_runbook_is_run_unless_it_asks_the_init_system() -> None:
    run = {*RUNBOOK.blocks("run").values(), *RUNBOOK.blocks("sql").values()}
    for block in [*RUNBOOK.fenced("sh"), *RUNBOOK.fenced("sql")]:
        assert block in run or re.search(r"\b(journalctl|systemctl)\b", block), block


def test_figures_that_were_never_read_grow_old_all_the_same() -> None:
    """Else the alert about withheld figures would be blind to a role that may not read them at all."""
    memory = MetricsMemory(1, 1)
    memory.supervisor.set(cells.of_pool(catalogue.START_TIME), time.time_ns() - 90 * cells.NANOSECONDS)
    figures.write(memory, "queued", [])
    text, _ = Exposition(Collector(collector.Pool("default", 1, "1"), PoolMemory(1), memory)).text("")
    found = parse(text.decode())
    assert found.get("deadsure_database_figures_age_seconds", part="queued") < 60
    assert found.get("deadsure_database_figures_age_seconds", part="server") >= 90
