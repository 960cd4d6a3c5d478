"""From what a client sent to what is stored: every field checked, the wrong one named."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ..runtime import payload
from ..runtime.ids import uuid7
from ..runtime.store.submit import Submission
from .application import Application
from .problems import Problem
from .wire import NAME, YEARS, NewTask

#: RFC 3339, section 5.6, with the zone that it demands.
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_NAME = re.compile(NAME)
_YEARS = re.compile(YEARS)


def submission(asked: NewTask, key: str | None, application: Application, where: str = "$") -> Submission:
    """A task to be stored, under a new id. Raises NotStorable (400) or Problem (422), which name the field."""
    text = bytes(asked.payload)
    value = payload.check(text, f"{where}.payload")
    application.check(asked.kind, value, f"{where}.payload")
    return Submission(
        id=uuid7(),
        kind=_checked(asked.kind, f"{where}.kind"),
        payload=text.decode(),
        queue=None if asked.queue is None else _checked(asked.queue, f"{where}.queue"),
        priority=None if asked.priority is None else int(asked.priority),
        run_at=None if asked.run_at is None else _time(asked.run_at, f"{where}.run_at"),
        max_attempts=None if asked.max_attempts is None else int(asked.max_attempts),
        timeout=asked.timeout,
        key=key,
    )


def is_name(text: str) -> bool:
    """Whether this can be the name of a kind or a queue."""
    return len(text) <= 200 and _NAME.fullmatch(text) is not None


def _checked(text: str, where: str) -> str:
    if not is_name(text):
        raise Problem(422, "invalid-request", f"only printable characters, without spaces around them - at `{where}`")
    return text


def _time(text: str, where: str) -> datetime:
    """The database's own parser would also take `now`, `infinity`, 24:00 and times without a zone."""
    try:
        if _TIME.fullmatch(text) and _YEARS.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Problem(422, "invalid-request", f"expected a time as in RFC 3339, with its zone - at `{where}`")
