"""Invariants 7, 8 and 13: what was done outside the database, how often, and with no transaction open."""

from __future__ import annotations

from collections.abc import Iterator

from ...runtime.effects import key_for
from ..modes import MODES
from .facts import Facts, Task, grouped
from .violations import Blind, Violation


def one_effect_per_key(facts: Facts) -> Iterator[Violation]:
    """7. At most one effect per key with a provider that refuses to do a key twice; the key never changes.

    Also where it refuses nothing: what the contract allows to be done again was not done before.
    """
    keys = {key_for(id): row for id, row in facts.tasks.items()}
    for kind, book in facts.books.items():
        for key, lines in grouped(book, lambda line: str(line["key"])).items():
            row = keys.get(key)
            if row is None or row.kind != kind:
                yield Violation(7, f"the ledger of {kind} knows the key {key}, which is no such task's")
            if (times := sum(line["event"] == "effect" for line in lines)) > 1:
                dedups = MODES[facts.kinds[kind].mode or ""].dedups
                said = f"was done {times} times by a ledger that does {'no' if dedups else 'a'} key twice"
                yield Violation(7, said, row.id if row else None, "duplicate", times - 1)
            if len({line["request"] for line in lines if line["event"] == "post"}) > 1:
                yield Violation(7, "was asked for with different requests under one key", row.id if row else None)
    for id, row in facts.tasks.items():
        if row.effect_key not in (None, key_for(id)):
            yield Violation(7, f"has the key {row.effect_key}", id)


def no_rerun_without_contract(facts: Facts) -> Iterator[Violation]:
    """8. Nothing that may have happened is run again by itself without a contract."""
    for id, row in facts.tasks.items():
        kind = facts.kinds[row.kind]
        if kind.on_death == "requeue":
            continue
        if kind.mode is None and (times := len(facts.runs_of.get(id, []))) > 1:
            yield Violation(8, f"its on_death is {kind.on_death}, and it was run {times} times", id, "duplicate")
        if kind.mode is not None and kind.contract is None:
            yield from _no_contract(facts, row)
        for event in facts.events_of.get(id, []):
            if event.event == "recovered" and event.detail.get("to") == "queued":
                yield Violation(8, "was queued again by a recovery", id)


def _no_contract(facts: Facts, row: Task) -> Iterator[Violation]:
    if (posts := len(facts.posts(key_for(row.id)))) > 1:
        yield Violation(8, f"{posts} requests were sent, without a contract", row.id, "duplicate")
    for event in facts.events_of.get(row.id, []):
        if event.event == "reconciled":
            yield Violation(8, f"was settled by a lookup ({event.detail.get('to')}), without a contract", row.id)


def no_transaction_beside_a_run(facts: Facts) -> Iterator[Violation]:
    """13. No transaction is open while a handler or a provider call runs."""
    if not facts.transactions:
        raise Blind("the proxy saw no transaction at all, so it was not where they are")
    runs = grouped(facts.runs, lambda run: run.pid)
    for transaction in facts.transactions:
        for run in runs.get(transaction.pid, []):
            end = run.start if run.end is None else run.end
            if transaction.start < end and transaction.end > run.start:
                said = f"a transaction of process {run.pid} was open for {transaction.end - transaction.start:.3f} s"
                yield Violation(13, f"{said} beside its {run.what}", run.task)
