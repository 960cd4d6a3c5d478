"""What a PromQL expression names: metrics, the labels it chooses by, the labels it groups by.

Prometheus answers a misspelt name with an empty result and no error, so names are compared with what is exported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

#: What Prometheus itself adds to every series that it scrapes.
OF_TARGETS = frozenset({"job", "instance"})
_METRIC = re.compile(r"\b(deadsure_\w+)(?:\s*\{([^}]*)\})?")
_CHOSEN = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")


def metrics(expression: str) -> set[str]:
    """The metrics of ours that it names, as they stand there: a histogram's with its suffix."""
    return {name for name, _ in _METRIC.findall(expression)}


def wrong(expression: str, exported: Mapping[str, Set[str]]) -> list[str]:
    """What it names that is not there. `exported` has the labels of each metric."""
    return list(_wrong(expression, exported))


def _wrong(expression: str, exported: Mapping[str, Set[str]]) -> Iterator[str]:
    there: set[str] = set(OF_TARGETS)
    for name, chosen in _METRIC.findall(expression):
        if name not in exported:
            yield f"no metric {name}: {expression}"
            continue
        there |= exported[name]
        for label in _CHOSEN.findall(chosen):
            if label not in exported[name] | OF_TARGETS:
                yield f"{name} has no label {label}: {expression}"
    for group in _GROUPED.findall(expression):
        for label in re.findall(r"\w+", group):
            if label not in there:
                yield f"none has a label {label}: {expression}"
