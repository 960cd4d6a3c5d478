"""The dashboard that is shipped, as data."""

from __future__ import annotations

import json
import re
from typing import Any

from .pool import ROOT
from .prometheus import Series

FILE = ROOT / "deploy" / "grafana" / "deadsure.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
ROWS = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = BOARD["templating"]["list"]


def asked(expression: str, *, window: float, whole: float) -> str:
    """The expression with what Grafana puts in place of variables: intervals of `window` s, a range of `whole` s."""
    values = {"__rate_interval": _milliseconds(window), "__interval": _milliseconds(window)}
    values |= {"__range": _milliseconds(whole), "job": "deadsure", "instance": ".*"}
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], expression)


def named(series: Series, legend: str) -> str:
    """The name of a line. KeyError: the series has no such label."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: series.labels[label[1]], legend)


def _milliseconds(seconds: float) -> str:
    return f"{int(seconds * 1000)}ms"
