"""Effects, one guard at a time: who may not call, finish or settle changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from deadsure import Call, Intent, Receipt
from deadsure.runtime import reconciling
from deadsure.runtime.effects import Unavailable, mismatch
from deadsure.runtime.errors import StatementRefused
from deadsure.runtime.model import Claimed, EffectEnd, Outcome, Slot
from deadsure.runtime.store import cancel, effects, reconcile
from deadsure.runtime.store.effects import Prepared
from deadsure.testing import Ledger
from kit.bank import FULL, new_bank
from kit.store import Store, WorkerRow

LEASE_OVER = "update deadsure.incarnations set lease_until = clock_timestamp() - interval '1 second'"
SLOT_ENDED = "update deadsure.slots set ended = true"
DEFINITE = EffectEnd(True, "lookup")
SUCCEEDED = Outcome("succeeded", result='{"receipt_id": "r"}', effect=EffectEnd(True, "lookup", receipt="{}"))
CANCELED = Outcome("canceled", reason="canceled before the call", effect=DEFINITE)
FAILED = Outcome("failed", reason="Rejected: no such account", effect=DEFINITE)
RETRY = Outcome("retry", reason="NotSent: connection refused", effect=DEFINITE)
UNKNOWN = Outcome("unknown", reason="timed out", effect=EffectEnd(False, "lookup"))


def _everything(store: Store) -> list[list[dict[str, object]]]:
    """All that a statement about a task could change."""
    tables = ("tasks", "slots", "ready", "scheduled", "unknowns", "events")
    return [store.query(f"select * from deadsure.{table}") for table in tables]


# --- whoever does not hold the task


def _without_right(store: Store, worker: WorkerRow, task: Claimed, wrong: str) -> tuple[Slot, Claimed]:
    """What this worker shows when one thing is not right."""
    match wrong:
        case "token":
            return replace(worker.slot, token=worker.slot.token + 1), task
        case "fence":
            return worker.slot, msgspec.structs.replace(task, fence=task.fence + 1)
        case "owner":
            return store.worker().slot, task
    assert wrong == "slot ended"
    store.query(SLOT_ENDED)
    return worker.slot, task


@pytest.mark.parametrize("wrong", ["token", "slot ended", "fence", "owner"])
def test_who_does_not_hold_the_task_may_not_call_its_provider(store: Store, wrong: str) -> None:
    bank = new_bank(store)
    bank.submit()
    worker, task = bank.claim()
    slot, shown = _without_right(store, worker, task, wrong)
    before = _everything(store)
    assert _ask(worker, slot, shown) is None
    assert _everything(store) == before


@pytest.mark.parametrize("wrong", ["token", "slot ended", "fence", "owner"])
def test_who_does_not_hold_the_task_cannot_finish_it(store: Store, wrong: str) -> None:
    bank = new_bank(store)
    bank.submit()
    worker, task = bank.claim()
    slot, shown = _without_right(store, worker, task, wrong)
    before = _everything(store)
    step = effects.finish_alone(worker.connection, slot, shown, SUCCEEDED)
    assert (step.finished, step.slot) == (None, slot)
    assert step.refused is not None
    assert _everything(store) == before


def test_what_was_finished_cannot_be_finished_again(store: Store) -> None:
    bank = new_bank(store)
    bank.submit()
    worker, task = bank.claim()
    assert bank.finish(worker, task, SUCCEEDED).finished == "succeeded"
    before = _everything(store)
    assert bank.finish(worker, task, UNKNOWN).finished is None
    assert _everything(store) == before


def test_a_task_that_was_finished_is_not_called_for(store: Store) -> None:
    bank = new_bank(store)
    bank.submit()
    worker, task = bank.claim()
    assert bank.finish(worker, task, SUCCEEDED).finished == "succeeded"
    before = _everything(store)
    assert _ask(worker, worker.slot, task) is None
    assert _everything(store) == before


def _ask(worker: WorkerRow, slot: Slot, task: Claimed) -> str | None:
    """The verdict on a call."""
    what = Prepared("ledger", "ledger", f"deadsure-{task.id}", '{"a": 1}', "f", b"{}")
    return effects.before_call(worker.connection, slot, task, what, 10, 3600).verdict


# --- the check before the call


def test_after_the_lease_there_is_no_call(store: Store) -> None:
    bank = new_bank(store)
    bank.submit()
    worker, task = bank.claim()
    store.query(LEASE_OVER)
    before = _everything(store)
    assert _ask(worker, worker.slot, task) == "untrusted"
    assert _everything(store) == before


def test_past_the_local_deadline_there_is_no_call_whatever_the_database_said(store: Store) -> None:
    bank = new_bank(store)
    bank.submit()
    worker, task = bank.claim()
    outcome = bank.attempt(worker, task, trusted=False)
    assert bank.ledger.calls.total() == 0
    assert bank.finish(worker, task, outcome).finished == "queued"


def test_a_call_that_began_is_unsettled_until_it_is_answered(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=True)
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    cancel.cancel(store.connection, task, "test")
    assert bank.row(task)["state"] == "unknown"


def test_the_keys_retention_is_counted_from_the_first_call(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    first = bank.row(task)["first_perform_at"]
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    assert bank.run() == "unknown"
    assert bank.row(task)["first_perform_at"] == first


# --- the finish


def test_after_a_cancel_request_nothing_is_tried_again(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    cancel.cancel(store.connection, task, "test")
    assert bank.finish(worker, claimed, RETRY).finished == "canceled"
    assert store.query("select id from deadsure.scheduled") == []


@pytest.mark.parametrize("outcome", [FAILED, CANCELED, RETRY], ids=lambda outcome: str(outcome.state))
def test_nothing_is_over_while_an_earlier_call_has_no_answer(store: Store, outcome: Outcome) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    worker, claimed = bank.claim()
    cancel.cancel(store.connection, task, "test")
    assert bank.finish(worker, claimed, outcome).finished == "unknown"
    assert bank.row(task)["unknown_cause"] == "unsettled_attempt"


def test_an_effect_without_a_receipt_has_not_succeeded_at_either_statement(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    bank.attempt(worker, claimed)
    with pytest.raises(StatementRefused, match="unsettled_is_not_over"):
        worker.finish(claimed, Outcome("succeeded", result="1"))
    assert bank.finish(worker, claimed, Outcome("succeeded", result="1", effect=DEFINITE)).finished == "unknown"
    assert (bank.row(task)["unknown_cause"], bank.row(task)["result"]) == ("unsettled_attempt", None)


def test_a_result_that_came_with_a_failure_is_not_kept(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    assert bank.finish(worker, claimed, replace(FAILED, result="1")).finished == "failed"
    assert bank.row(task)["result"] is None


# --- the provider's answer


@pytest.mark.parametrize("answer", [None, True, {"receipt_id": "r"}])
def test_a_call_that_answers_with_no_receipt_is_not_done(store: Store, answer: Any) -> None:
    class Babbling(Ledger):
        def perform(self, call: Call) -> Receipt:
            super().perform(call)
            return answer  # type: ignore[no-any-return]

    bank = new_bank(store, ledger=Babbling(contract=FULL))
    task = bank.submit()
    assert bank.run() == "unknown"
    assert bank.row(task)["unknown_cause"] == "receipt_mismatch"


def test_a_receipt_that_says_true_for_1_proves_nothing() -> None:
    intent = Intent(amount=1)
    assert mismatch(Receipt("r", "k", intent.fingerprint, {"amount": 1}), "k", intent, None) is None
    assert mismatch(Receipt("r", "k", intent.fingerprint, {"amount": True}), "k", intent, None) is not None


@pytest.mark.parametrize("change", [SLOT_ENDED, LEASE_OVER])
def test_a_worker_that_may_not_act_looks_nothing_up(store: Store, change: str) -> None:
    bank = new_bank(store)
    bank.submit()
    bank.die(performed=True)
    worker = store.worker()
    store.query(change)
    before = _everything(store)
    assert reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 30) is None
    assert _everything(store) == before


@pytest.mark.parametrize("answer", ["found", "absent", "mismatch", "unavailable"])
@pytest.mark.parametrize("since", ["another death", "queued again"])
def test_an_answer_that_comes_after_the_task_has_moved_on_changes_nothing(
    store: Store, answer: str, since: str
) -> None:
    bank = new_bank(store)
    bank.submit()
    bank.die(performed=True)
    worker = store.worker()
    doubt = reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 0.0)
    assert doubt is not None
    late = _answers(reconciling.ask(bank.app, doubt))[answer]
    bank.ledger.forget()
    store.query("update deadsure.unknowns set lookup_at = clock_timestamp()")
    assert bank.reconcile() == "queued"
    if since == "another death":
        bank.die(performed=False)
    before = _everything(store)
    assert reconciling.settle(worker.connection, bank.app, doubt, late) in ("moved_on", "unavailable")
    assert _everything(store) == before


def _answers(receipt: reconciling.Answer) -> dict[str, reconciling.Answer]:
    assert isinstance(receipt, Receipt)
    return {
        "found": receipt,
        "absent": None,
        "mismatch": replace(receipt, key="another"),
        "unavailable": Unavailable("no answer now"),
    }
