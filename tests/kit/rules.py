"""The scrape configuration and the alert rules that are shipped, as files and as data."""

from __future__ import annotations

import re
from typing import Any

import yaml

from .pool import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
CONFIG = FOLDER / "prometheus.yml"
RULES = FOLDER / "deadsure.rules.yml"
#: What promtool is to try them with.
TESTS = sorted((FOLDER / "tests").glob("*.yml"))
#: Every rule by its name, in the file's order.
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}


def sooner(faster: float, *names: str) -> str:
    """The rules' text with all times of these ones, which are about an age, divided; the others as they are shipped."""
    text = RULES.read_text()
    for name in names:
        times = rf"(alert: {name}\n\s+expr: [^\n]* > )(\d+)(\n\s+for: )(\d+)m\n"
        text, found = re.subn(times, lambda rule: _divided(rule, faster), text)
        assert found == 1, name
    return text


def _divided(rule: re.Match[str], faster: float) -> str:
    return f"{rule[1]}{int(rule[2]) / faster}{rule[3]}{int(rule[4]) * 60_000 / faster:.0f}ms\n"
