"""deadsure.testing: what an application's own tests rely on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from deadsure import App, Canceled, Context, Contract, Intent
from deadsure.testing import Ledger, Outcome, run

app = App()
ledger = Ledger()
CANCELED = {"cancel_requested": True}


class Page(msgspec.Struct):
    text: str


@app.task("count", on_death="fail")
def count(page: Page) -> int:
    return len(page.text)


@app.task("patient", on_death="requeue", max_attempts=2)
def patient(payload: dict[str, Any], context: Context) -> int:
    if payload.get("raise"):
        raise ValueError(f"attempt {context.attempt}")
    if payload.get("look"):
        context.raise_if_canceled()
    return context.attempt


@app.task("stubborn")
async def stubborn(payload: dict[str, Any]) -> str:
    return "done"


@app.task("gives up")
def gives_up(payload: dict[str, Any]) -> None:
    raise Canceled("enough")


@app.effect("pay", provider=ledger)
def pay(payload: dict[str, Any]) -> Intent:
    return Intent(account=payload["account"], amount=payload["amount"])


@pytest.mark.parametrize(
    ("kind", "payload", "options", "expected"),
    [
        ("count", {"text": "abc"}, {}, Outcome("succeeded", 3)),
        ("patient", {}, {"attempt": 2}, Outcome("succeeded", 2)),
        ("patient", {"raise": True}, {}, Outcome("queued", failure_reason="ValueError: attempt 1")),
        ("patient", {"raise": True}, {"attempt": 2}, Outcome("failed", failure_reason="ValueError: attempt 2")),
        ("patient", {"raise": True}, CANCELED, Outcome("failed", failure_reason="ValueError: attempt 1")),
        ("patient", {"look": True}, {"cancel_requested": True}, Outcome("canceled")),
        ("patient", {}, {"cancel_requested": True}, Outcome("canceled")),
        ("stubborn", {}, {"cancel_requested": True}, Outcome("succeeded", "done")),
        ("gives up", {}, {}, Outcome("failed", failure_reason="Canceled: enough")),
    ],
)
def test_a_handler_runs_without_a_database(
    kind: str, payload: dict[str, Any], options: dict[str, Any], expected: Outcome
) -> None:
    assert run(app, kind, payload, **options) == expected


def test_a_payload_that_does_not_fit_is_a_failure_that_names_the_field() -> None:
    outcome = run(app, "count", {"text": 5})
    assert outcome.state == "failed"
    assert "$.text" in str(outcome.failure_reason)


def test_an_effect_shows_its_intent_and_performs_nothing() -> None:
    outcome = run(app, "pay", {"account": "a", "amount": 5})
    assert (outcome.state, outcome.intent) == ("running", Intent(account="a", amount=5))
    assert ledger.calls.total() == 0
    assert run(app, "pay", {"account": "a", "amount": 0.5}).state == "failed"


def test_a_kind_that_the_app_does_not_have_is_a_mistake_of_the_test() -> None:
    with pytest.raises(KeyError):
        run(app, "nothing", {})


def test_a_context_can_be_built_by_hand() -> None:
    context = Context(task_id="t")
    assert (context.attempt, context.cancel_requested, context.deadline) == (1, False, None)
    context.raise_if_canceled()


def test_an_intent_has_one_fingerprint_whatever_the_order_of_its_fields() -> None:
    one, other = Intent(a=1, b=[True, None, "ü"]), Intent({"b": [True, None, "ü"], "a": 1})
    assert (one, one.fingerprint) == (other, other.fingerprint)
    # echo -n '{"a":1,"b":[true,null,"ü"]}' | sha256sum
    assert one.fingerprint == "546c74fce243b0d4a8ad4f06479a818fe1f5d854749cd53a101b3ab77c47bf0c"
    assert "b=" not in repr(one)


@pytest.mark.parametrize("value", [0.5, 2**53, float("nan"), b"x", {1: 2}, "\ud800", "a\x00", [0.1], object()])
def test_an_intent_refuses_what_has_no_one_form(value: Any) -> None:
    with pytest.raises(ValueError, match="intent"):
        Intent(amount=value)


def test_a_contract_says_what_it_must() -> None:
    assert Contract(True, True, 60, 0).verify is None


def test_what_cannot_be_meant_is_refused_by_its_name() -> None:
    broken = App()
    with pytest.raises(ValueError, match="a kind must be a string"):
        broken.task(len)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be a number"):
        broken.task("a", timeout="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_death must be one of"):
        broken.task("a", on_death="again")
