"""What clients were told, held against the rows: nothing acknowledged is lost, nothing invented, nothing stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pg8000.native
from deadsure.drills.book import History
from deadsure.runtime import db
from deadsure.runtime.effects import key_for

from .traffic import Traffic
from .wait import wait_until

Ask = Callable[..., list[list[Any]]]

_OPEN = (
    "select id, kind, state from deadsure.tasks"
    " where state in ('queued', 'running') or state = 'unknown' and unknown_needs = 'lookup' limit 5"
)
_WITHOUT_SLOT = (
    "select t.id from deadsure.tasks t left join deadsure.slots s on s.slot = t.owner and t.id = any(s.task_ids)"
    " where t.state = 'running' and (s.slot is null or s.ended)"
)


@contextmanager
def asking(settings: db.Settings) -> Iterator[Ask]:
    """A plain session with the first of the servers, beside whatever is tested: call it with SQL."""
    host = settings.dsn.hosts[0]
    session = pg8000.native.Connection(
        settings.dsn.user, host=host.name, port=host.port, database=settings.dsn.database, timeout=20
    )
    try:
        yield session.run
    finally:
        with suppress(pg8000.native.InterfaceError, OSError):  # the test may have crashed the server
            session.close()


def settled(settings: db.Settings, deadline: float = 60.0) -> None:
    """Wait until every task has ended, or is unknown and waits for a person. Nothing runs without a slot."""
    with asking(settings) as ask:
        try:
            wait_until(lambda: not ask(_OPEN), "every task ends", deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}: {ask(_OPEN)}") from error
        assert ask(_WITHOUT_SLOT) == []


def check(settings: db.Settings, traffic: Traffic) -> Counter[str]:
    """Hold what the clients were told against the rows. Returns how many acknowledged tasks are in which state."""
    with asking(settings) as ask:
        rows = {str(id): (state, result) for id, state, result in ask("select id, state, result from deadsure.tasks")}
    lost = set(traffic.acknowledged) - set(rows)
    assert not lost, f"acknowledged and lost: {sorted(lost)[:5]}"
    invented = set(rows) - set(traffic.acknowledged) - traffic.doubtful
    assert not invented, f"stored, and the client was told that it is not: {sorted(invented)[:5]}"
    other = [id for id, shown in traffic.ended.items() if rows[id] != shown]
    assert not other, f"shown as ended, and another way now: {other[:5]}"
    return Counter(rows[id][0] for id in traffic.acknowledged)


def check_effects(settings: db.Settings, history: History, kind: str = "ledger.transfer") -> int:
    """No key was performed twice, and what has succeeded was performed. Returns how many effects there were."""
    effects = history.effects
    assert not [key for key, times in effects.items() if times > 1]
    with asking(settings) as ask:
        done = ask("select id from deadsure.tasks where kind = :kind and state = 'succeeded'", kind=kind)
    assert not [id for (id,) in done if effects[key_for(str(id))] != 1]
    return effects.total()
