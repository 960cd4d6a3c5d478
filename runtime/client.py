"""Submit on the caller's own DB-API connection, inside the caller's own transaction.

The task exists exactly if that transaction commits: no outbox is needed, and nothing is sent twice or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from . import payload as payloads_of
from . import sql
from .errors import NotStorable
from .parameters import encode

_SUBMIT = sql.statement("client_submit")


class Cursor(Protocol):
    """What we use of a DB-API cursor (PEP 249)."""

    def execute(self, operation: Any, parameters: Sequence[Any], /) -> Any: ...
    def fetchall(self) -> Any: ...
    def close(self) -> Any: ...


class Connection(Protocol):
    """What we use of a DB-API connection: pg8000.dbapi, psycopg, or another with the `format` paramstyle."""

    def cursor(self) -> Any: ...


def submit(
    connection: Connection,
    kind: str,
    payload: Any,
    *,
    key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    timeout: float | None = None,
) -> str:
    """Submit one task; returns its id. None elsewhere means the kind's own default.

    `payload` is anything that JSON can show. Under a `key` that was used before, the same request returns the id of
    the task that stands there. Raises NotStorable or ValueError before anything is sent, and the driver's own error
    when the database refuses: an unknown kind, a key that belongs to another request.
    """
    return submit_many(
        connection,
        kind,
        [payload],
        keys=None if key is None else [key],
        queue=queue,
        priority=priority,
        run_at=run_at,
        max_attempts=max_attempts,
        timeout=timeout,
    )[0]


def submit_many(
    connection: Connection,
    kind: str,
    payloads: Iterable[Any],
    *,
    keys: Sequence[str | None] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    timeout: float | None = None,
) -> list[str]:
    """Submit one task per payload, in one statement; returns their ids in the same order. Otherwise as `submit`.

    `keys` has one idempotency key, or None, for each payload.
    """
    texts = [_text(payload) for payload in payloads]
    named = [None] * len(texts) if keys is None else list(keys)
    if len(named) != len(texts):
        raise ValueError(f"{len(texts)} payloads, but {len(named)} keys")
    if run_at is not None and not isinstance(run_at, datetime):
        raise TypeError(f"run_at must be a datetime with its zone; not {run_at!r}")
    if run_at is not None and run_at.tzinfo is None:
        raise ValueError("run_at must carry its time zone")
    when = None if run_at is None else run_at.isoformat()
    cursor: Cursor = connection.cursor()
    try:
        parameters = (kind, queue, priority, when, max_attempts, timeout, encode(texts), encode(named))
        cursor.execute(_SUBMIT.text, parameters)
        rows = cursor.fetchall()
    finally:
        cursor.close()
    return [str(id) for _, id in sorted(tuple(row) for row in rows)]


def _text(payload: Any) -> str:
    try:
        text = json.dumps(payload, allow_nan=False, ensure_ascii=False, default=msgspec.to_builtins)
        payloads_of.check(text.encode("utf-8"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorable(f"payload: JSON cannot show it: {error}; nothing was stored") from error
    return text
