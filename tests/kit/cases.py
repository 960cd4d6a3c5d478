"""Hooks for schemathesis (SCHEMATHESIS_HOOKS=kit.cases): what no document can say about a request.

A kind must be registered, and a key must not belong to another request. Both are facts of the database, so a case that
is right in its form gets a kind that is there and a key of its own; what is then refused is refused for its form.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import schemathesis
from deadsure.httpapi.keys import BARE
from deadsure.httpapi.wire import NAME

#: A kind that takes every max_attempts.
KIND = "any"

_KIND = re.compile(NAME)
_KEY = re.compile(BARE)


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Applied to every request, also those that are wrong in another place."""
    if case.headers and _is(_KEY, case.headers.get("Idempotency-Key")):
        case.headers["Idempotency-Key"] = str(uuid.uuid4())
    if isinstance(case.body, dict):
        tasks = case.body.get("tasks")
        for task in [case.body, *(tasks if isinstance(tasks, list) else [])]:
            _meant(task)


def _meant(task: Any) -> None:
    if not isinstance(task, dict):
        return
    kind = task.get("kind")
    if _is(_KIND, kind) and len(kind) <= 200:
        task["kind"] = KIND
    if _is(_KEY, task.get("idempotency_key")):
        task["idempotency_key"] = str(uuid.uuid4())


def _is(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
