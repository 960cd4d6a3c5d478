"""`deadsure prune`: remove tasks that finished long ago, with all their parts, and slots that ended long ago."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import replace

from ..runtime import db
from ..runtime.db import Connection, Settings
from ..runtime.errors import DeadsureError, StatementRefused
from ..runtime.store import migrate, prune
from ..runtime.store.prune import Horizon, Kept
from .layers import OptionError
from .options import DONE, FAILED, add_data, load_config, say
from .staging import or_running
from .wiring import database_settings

EXAMPLES = """\
  deadsure prune --older-than 30             tasks that finished 30 days ago or earlier; safe beside running pools
  deadsure prune --older-than 30 --dry-run   only count them

Never an unknown task, nor one that has not finished. An idempotency key goes with its task: used again afterwards it
makes a new one. Exit code 1 when a task could not be removed, because a table of yours refers to it: it is named.
"""

#: A user's foreign key without an index makes a removal slow; but we give way to whoever waits for a lock: seconds.
_STATEMENT_TIMEOUT = 10.0
_LOCK_TIMEOUT = 0.5
_MOST_DAYS = 36525
_MOST_NAMED = 20
_NO_RIGHT = "42501"


class MayNotPrune(DeadsureError):
    """The database's role may not remove tasks; nothing was removed."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", metavar="DAYS", type=float, required=True, help="how long they have been over, at least"
    )
    parser.add_argument("--dry-run", action="store_true", help="only count, and change nothing")
    add_data(parser)


def run(arguments: Namespace) -> int:
    """Raises OptionError, ConfigurationError, SchemaMismatch, MayNotPrune or StoreError: what is gone stays gone."""
    days = arguments.older_than
    if not (math.isfinite(days) and 0 <= days <= _MOST_DAYS):
        raise OptionError(f"--older-than: expected a number of days, from 0 to {_MOST_DAYS}")
    config = or_running(load_config(arguments), arguments.data)
    connection = db.connect(_giving_way(database_settings(config)), "deadsure prune")
    try:
        migrate.check(connection)
        horizon = prune.horizon(connection, days)
        return _count(connection, horizon) if arguments.dry_run else _remove(connection, horizon)
    except StatementRefused as error:
        if error.sqlstate != _NO_RIGHT:
            raise
        raise MayNotPrune(f"{error}: connect as a role that may (deploy/postgres/roles.sql has one)") from None
    finally:
        connection.close()


def _count(connection: Connection, horizon: Horizon) -> int:
    counts = Counter(
        tasks=sum(map(len, prune.old_tasks(connection, horizon))),
        slots=sum(map(len, prune.old_slots(connection, horizon))),
        incarnations=sum(map(len, prune.old_incarnations(connection, horizon))),
    )
    print(f"would remove {_said(counts)}")
    return DONE


def _remove(connection: Connection, horizon: Horizon) -> int:
    """Remove, and say how much it was, also when something stops it on the way."""
    counts: Counter[str] = Counter()
    kept: list[Kept] = []
    try:
        for ids in prune.old_tasks(connection, horizon):
            counts["tasks"] += prune.remove_tasks(connection, horizon, ids, kept.append)
        for ids in prune.old_slots(connection, horizon):
            counts["slots"] += prune.remove_slots(connection, ids)
        for ids in prune.old_incarnations(connection, horizon):
            counts["incarnations"] += prune.remove_incarnations(connection, ids)
    finally:
        print(f"removed {_said(counts)}", flush=True)
        _tell(kept)
    return FAILED if kept else DONE


def _tell(kept: list[Kept]) -> None:
    for one in kept[:_MOST_NAMED]:
        say(f"kept {one.id}: {one.why}")
    if len(kept) > _MOST_NAMED:
        say(f"kept {len(kept) - _MOST_NAMED} more")
    if kept:
        say(f"{len(kept)} tasks could not be removed; they are tried again next time")


def _said(counts: Counter[str]) -> str:
    return f"{counts['tasks']} tasks, {counts['slots']} slots, {counts['incarnations']} incarnations"


def _giving_way(settings: Settings) -> Settings:
    timeout = max(settings.statement_timeout, _STATEMENT_TIMEOUT)
    return replace(settings, statement_timeout=timeout, lock_timeout=_LOCK_TIMEOUT)
