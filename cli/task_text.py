"""Tasks for people: one as lines, many as a table. What a task says of itself cannot speak to the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

#: A task in one of these states will not get on by itself any more, or needs somebody.
SETTLED = ("succeeded", "failed", "canceled", "unknown")

_COLUMNS = ("id", "kind", "queue", "state", "attempts", "created_at")


def lines(task: Mapping[str, Any]) -> str:
    """One field a line; what is null, false or as ever is left out."""
    shown = {name: value for name, value in task.items() if value is not None and value is not False}
    width = max((len(name) for name in shown), default=0)
    return "\n".join(f"{name:<{width}}  {word(value)}" for name, value in shown.items())


def events(happened: Iterable[Mapping[str, Any]]) -> str:
    """What happened to a task, one event a line, the oldest first: when, what, and what is known about it."""
    rows = [(word(event.get("at", "")), word(event.get("event", "")), word(event.get("detail"))) for event in happened]
    width = max((len(what) for _, what, _ in rows), default=0)
    return "\n".join(f"{at}  {what:<{width}}  {detail}" for at, what, detail in rows) or "nothing but the normal path"


def table(tasks: Iterable[Mapping[str, Any]]) -> str:
    """One task a line under a line of headings."""
    rows = [[name.upper() for name in _COLUMNS]]
    rows += [[_cell(task, name) for name in _COLUMNS] for task in tasks]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def word(value: object) -> str:
    """A value on one line: texts as they are, all else as JSON, control characters escaped."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cell(task: Mapping[str, Any], name: str) -> str:
    if name == "attempts":
        return f"{task.get('attempts')}/{task.get('max_attempts')}"
    asked = " (cancel requested)" if name == "state" and _cancel_open(task) else ""
    return word(task.get(name, "")) + asked


def _cancel_open(task: Mapping[str, Any]) -> bool:
    return bool(task.get("cancel_requested")) and task.get("state") in ("running", "unknown")
