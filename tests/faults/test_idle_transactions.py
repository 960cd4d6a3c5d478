"""While handlers and providers take their time, no session of ours is in a transaction and none holds a lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deadsure.drills.ledger_process import LedgerProcess
from kit.pool import Pool
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.faults

_IDLE = """
select application_name, state, extract(epoch from clock_timestamp() - state_change) as seconds, query
  from pg_stat_activity
 where datname = current_database() and application_name like 'deadsure%' and state like 'idle in transaction%'
"""
#: Every transaction holds the lock of its own virtual id, which excludes nobody.
_LOCKS = """
select a.application_name, l.locktype, l.mode, cast(l.relation as text) as relation, a.query
  from pg_locks l join pg_stat_activity a on a.pid = l.pid
 where a.datname = current_database() and a.application_name like 'deadsure%' and l.locktype <> 'virtualxid'
"""
SLOW = 2.0


@pytest.fixture
def slow_ledger(tmp_path: Path) -> Iterator[LedgerProcess]:
    """Its answers take their time."""
    with LedgerProcess(tmp_path / "book", options={"delay": str(SLOW)}) as ledger:
        yield ledger


def test_nobody_is_in_a_transaction_while_handlers_run_and_providers_are_called(
    new_pool: Callable[..., Pool], store: Store, slow_ledger: LedgerProcess
) -> None:
    """All workers are inside a handler or a call for seconds: whatever is held then, is held by them or for them."""
    environment = {"DEADSURE_LEDGER_URL": slow_ledger.url}
    pool = new_pool(app="deadsure.drills.demo:app", workers=4, environment=environment).start()
    tasks = [pool.submit("sleep", {"seconds": SLOW}) for _ in range(2)]
    tasks += [pool.submit("ledger.transfer", {"account": f"a{n}", "amount": 1}) for n in range(2)]
    wait_until(lambda: len(slow_ledger.history.posts) == 2, "both providers are called")
    wait_until(lambda: all(pool.task(task)["state"] == "running" for task in tasks), "all four run")
    held = []
    until, rounds = time.monotonic() + SLOW / 2, 0
    while time.monotonic() < until:
        rounds += 1
        held += store.query(_LOCKS)
        idle = store.query(_IDLE)
        assert not [session for session in idle if float(str(session["seconds"])) > 1], idle
    # The supervisor's and the API's statements are short: seen now and then, and never twice in a row for long.
    assert not [lock for lock in held if "worker" in str(lock["application_name"])]
    assert len(held) < rounds
    for task in tasks:
        pool.wait_for(task, "succeeded")


def test_no_session_is_idle_in_a_transaction_under_load(
    new_pool: Callable[..., Pool], store: Store, slow_ledger: LedgerProcess
) -> None:
    environment = {"DEADSURE_LEDGER_URL": slow_ledger.url}
    options = {"POOL_RENEW_EVERY": "0.2", "POOL_POLL_INTERVAL": "0.1"}
    pool = new_pool(app="deadsure.drills.demo:app", workers=4, environment=environment, options=options).start()
    for number in range(60):
        kinds = ("noop", "text.analyze", "ledger.transfer")
        payloads = ({}, {"text": "a b"}, {"account": "a", "amount": number + 1})
        pool.submit(kinds[number % 3], payloads[number % 3])
    longest = 0.0
    until = time.monotonic() + 4
    while time.monotonic() < until:
        idle = store.query(_IDLE)
        longest = max([longest, *(float(str(session["seconds"])) for session in idle)])
        time.sleep(0.01)
    assert longest < 1, "a transaction was left open"
