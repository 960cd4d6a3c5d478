"""Effects on the store: the check before the call, receipts at both doors, reconciling, the budget, decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from deadsure import Call, Intent, NotSent, Receipt, Rejected
from deadsure.runtime import reconciling
from deadsure.runtime.errors import StatementRefused
from deadsure.runtime.ids import uuid7
from deadsure.runtime.model import ExitProof, Refusal, Wanted
from deadsure.runtime.store import cancel, effects, pool, reconcile, recover
from deadsure.runtime.store.effects import Prepared
from deadsure.runtime.store.reconcile import Decision, Undecided
from deadsure.testing import Ledger
from kit.bank import DEDUP_ONLY, FULL, KILLED, LOOKUP_ONLY, new_bank
from kit.store import Store


def test_an_effect_that_is_done_succeeds_with_its_receipt(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    assert bank.run() == "succeeded"
    row = bank.row(task)
    assert row["result"] == {"account": "a", "amount": 5, "receipt_id": "r-1"}
    assert row["receipt"]["key"] == row["effect_key"] == f"deadsure-{task}"
    assert row["fingerprint"] == Intent(account="a", amount=5).fingerprint
    assert (row["unsettled"], bank.done) == (False, 1)


def test_a_death_before_the_call_is_looked_up_and_done_under_the_original_key(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=False)
    row = bank.row(task)
    assert (row["state"], row["unknown_needs"], row["fence"]) == ("unknown", "lookup", 2)
    assert bank.reconcile() == "queued"
    assert bank.run() == "succeeded"
    row = bank.row(task)
    assert (row["attempts"], bank.done, dict(bank.ledger.calls)) == (2, 1, {f"deadsure-{task}": 1})


def test_a_death_after_the_call_is_settled_by_the_receipt_without_a_second_call(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=True)
    assert bank.reconcile() == "found"
    row = bank.row(task)
    assert (row["state"], row["attempts"], bank.done, bank.ledger.calls.total()) == ("succeeded", 1, 1, 1)
    assert row["receipt"]["receipt_id"] == "r-1"
    assert store.query("select * from deadsure.unknowns") == []


@pytest.mark.parametrize("performed", [False, True])
def test_without_a_contract_only_a_person_can_say(store: Store, performed: bool) -> None:
    bank = new_bank(store, None)
    task = bank.submit()
    bank.die(performed=performed)
    row = bank.row(task)
    assert (row["state"], row["unknown_needs"], row["attempts"]) == ("unknown", "decision", 1)
    assert bank.done == int(performed)
    assert bank.reconcile() == "nothing due"
    assert reconcile.ask_now(store.connection, task) == ("unknown", False)
    assert bank.reconcile() == "nothing due"
    assert store.worker().claim(Wanted.from_queues(("default",), bank.app.kinds)) is None


def test_the_budget_is_spent_by_claims_alone_and_then_a_decision_is_needed(store: Store) -> None:
    bank = new_bank(store, max_attempts=3)
    task = bank.submit()
    for verdict in ("queued", "queued", "decision"):
        bank.die(performed=False)
        assert bank.reconcile() == verdict
    row = bank.row(task)
    assert (row["state"], row["attempts"], row["unknown_needs"], bank.done) == ("unknown", 3, "decision", 0)
    assert bank.reconcile() == "nothing due"
    assert store.worker().claim(Wanted.from_queues(("default",), bank.app.kinds)) is None


def test_every_attempt_sends_the_same_bytes_under_the_same_key(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    bank.ledger.forget()

    def other(payload: dict[str, Any]) -> Intent:
        return Intent(account="somebody else", amount=999)

    bank.app._handlers["transfer"] = replace(bank.app._handlers["transfer"], handler=other)
    assert bank.reconcile() == "queued"
    bank.ledger.lose_answers = False
    assert bank.run() == "succeeded"
    assert list(bank.ledger.requests) == [f"deadsure-{task}"]
    first, second = bank.ledger.requests[f"deadsure-{task}"]
    assert first == second


def test_an_ambiguous_answer_is_unknown_and_the_lookup_finds_it(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    assert bank.row(task)["unknown_cause"] == "ambiguous_answer"
    assert bank.reconcile() == "found"
    assert (bank.row(task)["state"], bank.done) == ("succeeded", 1)


@pytest.mark.parametrize(
    "wrong",
    [{"fingerprint": "0" * 64}, {"key": "another"}, {"receipt_id": ""}, {"fields": {"account": "b", "amount": 5}},
     {"fields": {"account": "a", "amount": 6}}, {"fields": {"account": "a", "amount": True}}, {"fields": {}}],
)  # fmt: skip
@pytest.mark.parametrize("door", ["finish", "reconcile"])
def test_a_receipt_for_something_else_completes_nothing_at_either_door(
    store: Store, wrong: dict[str, Any], door: str
) -> None:
    class Lying(Ledger):
        def perform(self, call: Call) -> Receipt:
            receipt = super().perform(call)
            return replace(receipt, **wrong) if door == "finish" else receipt

        def lookup(self, call: Call) -> Receipt | None:
            receipt = super().lookup(call)
            return replace(receipt, **wrong) if receipt is not None else None

    bank = new_bank(store, ledger=Lying(contract=FULL))
    task = bank.submit()
    if door == "finish":
        assert bank.run() == "unknown"
        assert bank.row(task)["unknown_cause"] == "receipt_mismatch"
    else:
        bank.die(performed=True)
    assert bank.reconcile() == "mismatch"
    row = bank.row(task)
    assert (row["state"], row["unknown_cause"], row["unknown_needs"]) == ("unknown", "receipt_mismatch", "decision")
    assert row["receipt"] is None
    assert "receipt" in str(store.query("select detail from deadsure.events where task_id = :t", t=task))


def test_a_cancel_that_arrives_during_the_lookup_keeps_it_unknown(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=False)
    worker = store.worker()
    doubt = reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 30)
    assert doubt is not None
    answer = reconciling.ask(bank.app, doubt)
    cancel.cancel(store.connection, task, "test")
    assert reconciling.settle(worker.connection, bank.app, doubt, answer) == "decision"
    row = bank.row(task)
    assert (row["state"], row["cancel_requested"], bank.done) == ("unknown", True, 0)
    assert store.query("select * from deadsure.ready") == []


def test_a_cancel_of_a_requeued_task_whose_first_request_may_still_land_never_shows_canceled(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    cancel.cancel(store.connection, task, "test")
    row = bank.row(task)
    assert (row["state"], row["unknown_cause"], row["cancel_requested"]) == ("unknown", "unsettled_attempt", True)


def test_a_cancel_between_claim_and_call_means_no_call(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    cancel.cancel(store.connection, task, "test")
    assert bank.finish(worker, claimed, bank.attempt(worker, claimed)).finished == "canceled"
    assert bank.done == 0


def test_an_effect_that_is_done_in_spite_of_a_cancel_has_succeeded(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    outcome = bank.attempt(worker, claimed)
    cancel.cancel(store.connection, task, "test")
    assert bank.finish(worker, claimed, outcome).finished == "succeeded"


def test_a_rejection_is_a_failure_and_not_tried_again(store: Store) -> None:
    class Rejecting(Ledger):
        def perform(self, call: Call) -> Receipt:
            raise Rejected("no such account")

    bank = new_bank(store, ledger=Rejecting(contract=FULL))
    task = bank.submit()
    assert bank.run() == "failed"
    assert bank.row(task)["failure_reason"] == "Rejected: no such account"


def test_a_rejection_after_an_unsettled_attempt_is_not_a_failure(store: Store) -> None:
    class LateRejecting(Ledger):
        def perform(self, call: Call) -> Receipt:
            if call.attempt == 2:
                raise Rejected("closed meanwhile")
            return super().perform(call)

    bank = new_bank(store, ledger=LateRejecting(contract=FULL))
    task = bank.submit()
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    assert bank.run() == "unknown"
    assert bank.row(task)["unknown_cause"] == "unsettled_attempt"


def test_what_was_surely_not_sent_is_tried_again_until_the_budget_is_spent(store: Store) -> None:
    class Unreachable(Ledger):
        def perform(self, call: Call) -> Receipt:
            raise NotSent("connection refused")

    bank = new_bank(store, ledger=Unreachable(contract=FULL), max_attempts=2)
    task = bank.submit()
    assert bank.run() == "queued"
    row = bank.row(task)
    assert row["run_at"] > row["created_at"]
    assert (row["attempts"], row["unsettled"]) == (1, False)
    assert store.query("select id, run_at from deadsure.scheduled") == [{"id": task, "run_at": row["run_at"]}]
    store.query("update deadsure.scheduled set run_at = clock_timestamp()")
    store.query("update deadsure.tasks set run_at = (select run_at from deadsure.scheduled)")
    assert pool.promote(store.connection) == 1
    assert bank.run() == "failed"
    assert bank.row(task)["failure_reason"] == "NotSent: connection refused"


def test_lookup_alone_requeues_only_after_an_exit_and_when_all_had_settled_before_the_lookup(store: Store) -> None:
    bank = new_bank(store, replace(LOOKUP_ONLY, settle_after=0.4))
    task = bank.submit()
    bank.die(performed=False)
    assert bank.reconcile() == "later"
    assert bank.row(task)["state"] == "unknown"
    assert bank.reconcile() == "nothing due"
    store.query("update deadsure.tasks set sender_gone_at = sender_gone_at - interval '1 second'")
    store.query("update deadsure.unknowns set lookup_at = clock_timestamp()")
    assert bank.reconcile() == "queued"
    assert bank.run() == "succeeded"


def test_what_settled_only_during_the_lookup_does_not_count(store: Store) -> None:
    bank = new_bank(store, replace(LOOKUP_ONLY, settle_after=60))
    bank.submit()
    bank.die(performed=False)
    worker = store.worker()
    doubt = reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 30)
    assert doubt is not None
    store.query("update deadsure.tasks set sender_gone_at = clock_timestamp() - interval '60 seconds'")
    assert reconciling.settle(worker.connection, bank.app, doubt, None) == "later"


@pytest.mark.parametrize("how", ["lease", "senders_left"])
def test_lookup_alone_never_requeues_while_the_sender_may_live(store: Store, how: str) -> None:
    bank = new_bank(store, LOOKUP_ONLY)
    task = bank.submit()
    if how == "lease":
        bank.claim()
        me = store.new_incarnation()
        store.query(
            "update deadsure.incarnations set lease_until = clock_timestamp() where incarnation = :i",
            i=store.incarnation,
        )
        assert len(recover.sweep(store.connection, me)[1]) == 1
        store.incarnation = me
    else:
        bank.die(performed=False, proof=ExitProof("SIGKILL", evidence={"senders_gone": False}))
    assert bank.reconcile() == "decision"
    assert (bank.row(task)["state"], bank.done) == ("unknown", 0)


def test_a_provider_that_only_dedups_is_simply_asked_again_under_the_same_key(store: Store) -> None:
    bank = new_bank(store, DEDUP_ONLY)
    task = bank.submit()
    bank.die(performed=True)
    assert bank.reconcile() == "queued"
    assert bank.run() == "succeeded"
    assert (bank.row(task)["attempts"], bank.done, bank.ledger.calls.total()) == (2, 1, 2)
    assert bank.ledger.lookups.total() == 0


def test_past_the_keys_retention_an_absence_proves_nothing(store: Store) -> None:
    bank = new_bank(store, replace(FULL, key_retention=60))
    task = bank.submit()
    bank.die(performed=True)
    bank.ledger.forget()
    store.query("update deadsure.tasks set first_perform_at = first_perform_at - interval '61 seconds'")
    assert bank.reconcile() == "retention_passed"
    row = bank.row(task)
    assert (row["state"], row["unknown_cause"], row["unknown_needs"]) == ("unknown", "retention_passed", "decision")


def test_a_task_that_waited_in_a_backlog_past_the_retention_is_not_sent(store: Store) -> None:
    bank = new_bank(store, replace(FULL, key_retention=60))
    task = bank.submit()
    bank.ledger.lose_answers = True
    assert bank.run() == "unknown"
    bank.ledger.forget()
    assert bank.reconcile() == "queued"
    store.query("update deadsure.tasks set first_perform_at = first_perform_at - interval '55 seconds'")
    assert bank.run() == "unknown"  # 5 s are left, the call may take 10
    assert bank.row(task)["unknown_cause"] == "retention_passed"
    assert bank.ledger.calls.total() == 1


def test_another_provider_behind_the_same_name_is_no_answer_and_gets_no_call(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=True)
    bank.ledger.identity = "https://elsewhere"  # type: ignore[attr-defined]
    bank.ledger.forget()
    assert bank.reconcile() == "unavailable"
    assert bank.row(task)["state"] == "unknown"
    del bank.ledger.identity  # type: ignore[attr-defined]
    store.query("update deadsure.unknowns set lookup_at = clock_timestamp()")
    assert bank.reconcile() == "queued"
    bank.ledger.identity = "https://elsewhere"  # type: ignore[attr-defined]
    assert bank.run() == "unknown"
    assert (bank.row(task)["unknown_cause"], bank.ledger.calls.total()) == ("provider_changed", 1)


def test_a_lookup_that_is_answered_after_the_task_has_moved_on_changes_nothing(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=False)
    worker = store.worker()
    slow = reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 0.0)
    assert slow is not None
    store.query("update deadsure.unknowns set lookup_at = clock_timestamp()")
    assert bank.reconcile() == "queued"
    bank.die(performed=False)
    before = bank.row(task)
    assert before["state"] == "unknown"
    for answer in (None, Receipt("r", slow.key or "", "f")):
        assert reconciling.settle(worker.connection, bank.app, slow, answer) in ("moved_on",)
    assert bank.row(task) == before


def test_an_unavailable_provider_is_asked_again_later_and_spends_no_budget(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    bank.die(performed=True)
    bank.ledger.unavailable = True
    assert bank.reconcile() == "unavailable"
    assert bank.reconcile() == "nothing due"
    assert reconcile.ask_now(store.connection, task) == ("unknown", True)
    bank.ledger.unavailable = False
    assert bank.reconcile() == "found"
    assert bank.row(task)["attempts"] == 1


def test_a_swept_worker_makes_no_call_and_its_finish_is_refused(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    recover.recover_worker(store.connection, worker.slot.id, KILLED)
    outcome = bank.attempt(worker, claimed)
    assert bank.done == 0
    assert bank.finish(worker, claimed, outcome).refused is Refusal.SLOT_ENDED
    assert bank.row(task)["state"] == "unknown"


def test_a_worker_swept_after_the_check_calls_with_the_same_key_and_its_finish_is_refused(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    outcome = bank.attempt(worker, claimed)
    recover.recover_worker(store.connection, worker.slot.id, KILLED)
    assert bank.finish(worker, claimed, outcome).refused is Refusal.SLOT_ENDED
    assert bank.reconcile() == "found"
    assert (bank.row(task)["state"], bank.done) == ("succeeded", 1)


def test_the_check_before_the_call_can_be_repeated(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    worker, claimed = bank.claim()
    what = Prepared("ledger", "ledger", f"deadsure-{task}", '{"a": 1}', "f", b"{}")
    first = effects.before_call(worker.connection, worker.slot, claimed, what, 10, 3600)
    again = effects.before_call(worker.connection, worker.slot, claimed, what, 10, 3600)
    assert (first.verdict, again.verdict, first.earlier, again.earlier) == ("go", "go", False, False)


def _decide(store: Store, task: UUID, **changes: Any) -> Decision:
    version = store.row(task)["version"]
    made = Decision(uuid7(), task, version, "succeeded", "statement no. 7", "alice", '{"seen": true}')  # type: ignore[arg-type]
    return replace(made, **changes)


def test_a_person_decides_with_evidence_and_it_is_kept(store: Store) -> None:
    bank = new_bank(store, None)
    task = bank.submit()
    bank.die(performed=True)
    decision = _decide(store, task)
    reconcile.resolve(store.connection, decision)
    reconcile.resolve(store.connection, decision)  # a repeat finds its own
    row = bank.row(task)
    assert (row["state"], row["result"], row["unsettled"]) == ("succeeded", {"seen": True}, False)
    audit = store.query("select actor, evidence, decided, before from deadsure.decisions")
    assert len(audit) == 1
    assert (audit[0]["actor"], audit[0]["evidence"], audit[0]["decided"]) == ("alice", "statement no. 7", "succeeded")
    assert audit[0]["before"]["state"] == "unknown"  # type: ignore[index]
    for change in ("update deadsure.decisions set actor = 'bob'", "delete from deadsure.decisions",
                   "truncate deadsure.decisions"):  # fmt: skip
        with pytest.raises(Exception, match="only ever added to"):
            store.query(change)


def test_of_two_people_who_decide_at_once_one_learns_that_the_other_was_first(store: Store) -> None:
    bank = new_bank(store, None)
    task = bank.submit()
    bank.die(performed=True)
    first, second = _decide(store, task), _decide(store, task, state="failed", result=None)
    reconcile.resolve(store.connection, first)
    with pytest.raises(Undecided) as refused:
        reconcile.resolve(store.connection, second)
    assert refused.value.why == "version"
    assert bank.row(task)["state"] == "succeeded"


def test_a_decision_about_a_task_that_has_changed_is_not_taken(store: Store) -> None:
    bank = new_bank(store, None)
    task = bank.submit()
    bank.die(performed=True)
    decision = _decide(store, task)
    cancel.cancel(store.connection, task, "somebody else")
    with pytest.raises(Undecided) as refused:
        reconcile.resolve(store.connection, decision)
    assert (refused.value.why, refused.value.state) == ("version", "unknown")
    assert bank.row(task)["state"] == "unknown"


def test_only_an_unknown_task_can_be_decided(store: Store) -> None:
    bank = new_bank(store)
    task = bank.submit()
    with pytest.raises(Undecided) as refused:
        reconcile.resolve(store.connection, _decide(store, task))
    assert (refused.value.why, refused.value.state) == ("state", "queued")
    with pytest.raises(Undecided) as refused:
        reconcile.resolve(store.connection, replace(_decide(store, task), task=uuid7()))
    assert refused.value.why == "no_such_task"
    bank.die(performed=True)
    with pytest.raises(StatementRefused):
        reconcile.resolve(store.connection, _decide(store, task, evidence="  "))
    assert bank.row(task)["state"] == "unknown"


@pytest.mark.parametrize("nonsense", ["done", True, 5, {"receipt_id": "r"}, Receipt("\0", "k", "f", {})])
def test_a_lookup_that_answers_with_no_receipt_is_no_answer(store: Store, nonsense: Any) -> None:
    class Babbling(Ledger):
        def lookup(self, call: Call) -> Receipt | None:
            return nonsense  # type: ignore[no-any-return]

    bank = new_bank(store, ledger=Babbling(contract=FULL))
    task = bank.submit()
    bank.die(performed=True)
    assert bank.reconcile() == "unavailable"
    assert bank.row(task)["state"] == "unknown"
