"""The check before a call, where it is made again: by a copy that comes late, and under another contract."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from deadsure.runtime.model import Claimed, Kind, Outcome, Wanted
from deadsure.runtime.states import OnDeath
from deadsure.runtime.store import effects, recover
from deadsure.runtime.store.effects import Prepared
from deadsure.supervisor.stepping import Stepper
from kit.bank import FULL, KILLED, LOOKUP_ONLY, new_bank
from kit.store import WANTED, Store, WorkerRow


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


def _claimed_as_plain(store: Store, on_death: OnDeath) -> tuple[UUID, WorkerRow, Claimed]:
    """A task whose earlier attempt called and has no answer; its kind has been deployed without the effect since."""
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=True)
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    plain = Wanted.from_queues(["default"], (Kind("transfer", on_death, max_attempts=3),))
    worker = store.worker()
    claimed = worker.claim(plain)
    assert claimed is not None
    return task, worker, claimed


@pytest.mark.parametrize("on_death", list(OnDeath))
@pytest.mark.parametrize("outcome", [Outcome("succeeded", result="1"), Outcome("failed", reason="no")])
def test_a_kind_that_has_lost_its_effect_cannot_end_a_task_whose_call_is_open(
    store: Store, on_death: OnDeath, outcome: Outcome
) -> None:
    task, worker, claimed = _claimed_as_plain(store, on_death)
    stepper = Stepper(store.settings, "stepper", worker.slot, lambda seconds: None)
    step = stepper.step(claimed, outcome, WANTED)
    stepper.connected().close()
    assert step.finished == "unknown"
    row = store.row(task)
    assert (row["unknown_cause"], row["unknown_needs"]) == ("unsettled_attempt", "decision")


@pytest.mark.parametrize("on_death", list(OnDeath))
def test_a_death_leaves_a_task_whose_earlier_call_is_open_unknown(store: Store, on_death: OnDeath) -> None:
    task, worker, _ = _claimed_as_plain(store, on_death)
    (settled,) = recover.recover_worker(store.connection, worker.slot.id, KILLED)
    assert (settled.id, settled.state) == (task, "unknown")
