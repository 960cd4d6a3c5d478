"""The check before a call, where it is made again: by a copy that comes late, and under another contract."""

from __future__ import annotations

from dataclasses import replace

from deadsure.runtime.store import effects
from deadsure.runtime.store.effects import Prepared
from kit.bank import FULL, LOOKUP_ONLY, new_bank
from kit.store import Store


def test_a_late_copy_of_the_check_does_not_move_the_time_of_the_first_call(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    what = Prepared("ledger", "ledger", f"deadsure-{task}", '{"a": 1}', "f", b"{}")
    effects.before_call(worker.connection, worker.slot, claimed, what, 10, 3600)
    first = bank.row(task)["first_perform_at"]
    assert effects.before_call(worker.connection, worker.slot, claimed, what, 10, 3600).verdict == "go"
    assert bank.row(task)["first_perform_at"] == first


def test_a_new_attempt_with_nothing_open_starts_the_keys_time_anew(store: Store) -> None:
    bank = new_bank(store, LOOKUP_ONLY)
    task = bank.submit()
    bank.die(performed=True)
    first = bank.row(task)["first_perform_at"]
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    assert bank.row(task)["first_perform_at"] > first


def test_no_second_call_under_a_contract_that_no_longer_dedups_while_the_first_is_open(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=True)
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    bank.ledger.contract = replace(FULL, dedups_by_key=False)
    assert bank.run() == "unknown"
    row = bank.row(task)
    assert (row["state"], row["unknown_cause"], row["unknown_needs"]) == ("unknown", "retention_passed", "decision")
    assert bank.ledger.calls.total() == 1
