"""The checker: what a drill must find, and that it notices every violation that is planted in the facts."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from deadsure.drills import checker, matrix, report
from deadsure.drills.book import History
from deadsure.drills.checker import Promise, Verdict
from deadsure.drills.facts import Facts, TaskFacts, collect
from deadsure.drills.plan import CONFIRMS, PROVIDERS, Plan
from deadsure.runtime.points import POINTS

ID = UUID(int=1)


def plan(window: str = "after_claim", provider: str = "contract", **more: Any) -> Plan:
    return Plan.make(window, provider, **more)


def as_promised(plan: Plan) -> Facts:
    """The facts of a drill in which everything went as it must."""
    wanted = checker.promise(plan)
    return Facts(
        task_id=str(ID),
        window=plan.window,
        signal="SIGKILL",
        attempts=wanted.attempts,
        effects=wanted.effects,
        post_calls=wanted.post_calls,
        state=wanted.state,
        needs="decision" if wanted.state == "unknown" else None,
        fence=3,
        cancel_requested=wanted.cancel_requested,
        lookup=None,
        key_preserved=True,
        proof=wanted.proof,
        death_to_recovered_ms=10.0,
        canary="succeeded",
    )


# --- what must come out


@pytest.mark.parametrize(
    ("window", "provider", "attempts", "effects", "posts", "state"),
    [
        ("after_claim", "contract", 2, 1, 1, "succeeded"),
        ("after_tool", "contract", 1, 1, 1, "succeeded"),
        ("after_claim", "none", 1, 0, 0, "unknown"),
        ("after_tool", "none", 1, 1, 1, "unknown"),
        ("before_call", "contract", 2, 1, 1, "succeeded"),
        ("during_call", "contract", 1, 1, 1, "succeeded"),
        ("before_finish", "none", 1, 1, 1, "unknown"),
        ("after_finish", "none", 1, 1, 1, "succeeded"),
        ("after_tool", "dedup-only", 2, 1, 2, "succeeded"),
        ("after_claim", "lookup-only", 2, 1, 1, "succeeded"),
        ("after_tool", "lookup-only", 1, 1, 1, "succeeded"),
        ("before_call", "forgets", 1, 0, 0, "unknown"),
        ("after_tool", "forgets", 1, 1, 1, "unknown"),
        ("after_claim", "forgets", 2, 1, 1, "succeeded"),
    ],
)
def test_the_first_attempts_kill(
    window: str, provider: str, attempts: int, effects: int, posts: int, state: str
) -> None:
    assert checker.promise(plan(window, provider)) == Promise(state, attempts, effects, posts, False, _proof(window))


def _proof(window: str) -> str | None:
    return None if window == "after_finish" else "exit"


def test_the_last_attempts_kill_leaves_nothing_to_spend() -> None:
    assert checker.promise(plan("after_claim", attempt=3)) == Promise("unknown", 3, 0, 0, False, "exit")
    assert checker.promise(plan("after_tool", "dedup-only", attempt=3)) == Promise("unknown", 3, 1, 1, False, "exit")
    assert checker.promise(plan("after_tool", attempt=3)) == Promise("succeeded", 3, 1, 1, False, "exit")


def test_one_death_after_the_other_spends_the_budget() -> None:
    assert checker.promise(plan("after_claim", deaths=2)) == Promise("succeeded", 3, 1, 1, False, "exit")
    assert checker.promise(plan("after_claim", deaths=3)) == Promise("unknown", 3, 0, 0, False, "exit")
    assert checker.promise(plan("after_tool", "dedup-only", deaths=2)) == Promise("succeeded", 3, 1, 3, False, "exit")
    assert checker.promise(plan("after_tool", "dedup-only", deaths=3)) == Promise("unknown", 3, 1, 3, False, "exit")


def test_after_a_cancel_request_nothing_is_done_again_and_nothing_that_was_done_is_denied() -> None:
    assert checker.promise(plan("after_claim", cancel=True)) == Promise("unknown", 1, 0, 0, True, "exit")
    assert checker.promise(plan("after_tool", cancel=True)) == Promise("succeeded", 1, 1, 1, True, "exit")
    assert checker.promise(plan("after_finish", cancel=True)) == Promise("succeeded", 1, 1, 1, False, None)


def test_by_lookup_alone_only_an_exit_lets_it_be_done_again() -> None:
    states = {c: checker.promise(plan("after_claim", "lookup-only", confirm=c)).state for c in CONFIRMS}
    assert states == {"exit": "succeeded", "pool_lock": "unknown", "lease": "unknown"}


@pytest.mark.parametrize("cell", matrix.plans(), ids=lambda p: f"{p.window}-{p.provider}-{p.attempt}-{p.cancel}")
def test_no_promise_breaks_what_holds_everywhere(cell: Plan) -> None:
    wanted = checker.promise(cell)
    assert wanted.effects <= 1
    assert wanted.effects <= wanted.post_calls
    assert cell.attempt <= wanted.attempts <= 3
    assert wanted.state in ("succeeded", "unknown")
    assert (wanted.effects == 1) or wanted.state == "unknown"
    if cell.provider == "none":
        assert wanted.attempts == cell.attempt


# --- planted violations


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("window", POINTS)
def test_the_promised_facts_are_true(window: str, provider: str) -> None:
    drilled = plan(window, provider)
    assert checker.judge(drilled, as_promised(drilled)) == Verdict(True)


@pytest.mark.parametrize(
    ("violation", "said"),
    [
        ({"effects": 2, "post_calls": 2}, "effects is 2 and must be 1"),
        ({"effects": 0}, "effects is 0 and must be 1"),
        ({"post_calls": 2}, "post_calls is 2 and must be 1"),
        ({"post_calls": 0}, "more effects than requests"),
        ({"attempts": 1}, "attempts is 1 and must be 2"),
        ({"attempts": 4}, "the budget was overspent"),
        ({"state": "failed"}, "state is 'failed' and must be 'succeeded'"),
        ({"state": "canceled"}, "state is 'canceled'"),
        ({"state": "unknown", "needs": "lookup"}, "waits for nobody"),
        ({"cancel_requested": True}, "cancel_requested is True"),
        ({"key_preserved": False}, "key_preserved is False"),
        ({"proof": "lease"}, "proof is 'lease' and must be 'exit'"),
        ({"proof": None}, "proof is None"),
        ({"signal": "SIGTERM"}, "signal is 'SIGTERM'"),
        ({"window": "after_tool"}, "window is 'after_tool'"),
        ({"canary": "queued"}, "canary is 'queued'"),
        ({"attempts": True}, "attempts is True"),
        ({"effects": 1.0}, "effects is 1.0"),
    ],
)
def test_a_planted_violation_is_found_and_named(violation: dict[str, Any], said: str) -> None:
    drilled = plan()
    verdict = checker.judge(drilled, replace(as_promised(drilled), **violation))
    assert verdict.value is False
    assert any(said in text for text in verdict.why), verdict


def test_a_replay_without_a_contract_is_found() -> None:
    drilled = plan("after_tool", "none")
    replayed = replace(as_promised(drilled), state="succeeded", needs=None, attempts=2, effects=2, post_calls=2)
    assert checker.judge(drilled, replayed).value is False


def test_without_facts_the_verdict_is_unknown() -> None:
    assert checker.judge(plan(), None).value == "unknown"


def test_an_error_inside_the_checker_is_unknown_and_never_a_pass() -> None:
    drilled = plan()
    broken = replace(as_promised(drilled), effects=None)  # type: ignore[arg-type]
    verdict = checker.judge(drilled, broken)
    assert verdict.value == "unknown"
    assert "TypeError" in verdict.why[0]


# --- from what was read to the table, and to the line


def test_the_table_counts_every_key_and_sees_a_changed_one() -> None:
    now = datetime.now(UTC)
    task = TaskFacts("unknown", 1, 3, 2, False, f"deadsure-{ID}", "worker_died", "decision", None,
                     now + timedelta(milliseconds=12), "exit", "SIGKILL", now)  # fmt: skip
    right = {"key": f"deadsure-{ID}"}
    history = History(({"event": "post", **right}, {"event": "effect", **right}, {"event": "lookup", "answer": "absent",
                       **right}, {"event": "lookup", "answer": "found", **right}))  # fmt: skip
    found = collect(ID, "after_tool", "SIGKILL", task, history, now, "succeeded")
    assert (found.effects, found.post_calls, found.key_preserved, found.lookup) == (1, 1, True, "found")
    assert found.death_to_recovered_ms == 12.0
    other = History((*history.events, {"event": "post", "key": "another"}, {"event": "effect", "key": "another"}))
    found = collect(ID, "after_tool", "SIGKILL", task, other, now, "succeeded")
    assert (found.effects, found.post_calls, found.key_preserved) == (2, 2, False)


def test_the_line_has_its_keys_in_their_order() -> None:
    facts = as_promised(plan())
    short = '{"window":"after_claim","signal":"SIGKILL","attempts":2,"effects":1,"post_calls":1,"state":"succeeded"}'
    assert report.line(facts) == short
    assert report.line(facts, full=True) == short[:-1] + (
        ',"fence":3,"cancel_requested":false,"lookup":null,"key_preserved":true,"proof":"exit",'
        f'"death_to_recovered_ms":10.0,"task_id":"{ID}"}}'
    )
    assert {field.name for field in fields(Facts)} >= {*report.KEYS, *report.MORE}


def test_a_row_shows_what_is_wrong() -> None:
    drilled = plan()
    facts = replace(as_promised(drilled), effects=2, post_calls=2)
    text = report.row(drilled, facts, checker.judge(drilled, facts))
    assert text.split()[:10] == ["after_claim", "contract", "exit", "1", "no", "succeeded", "2", "2", "2", "WRONG"]
    assert "    effects is 2 and must be 1" in text
    assert report.row(drilled, None, Verdict("unknown", ("no pool",))).splitlines()[1] == "    no pool"


# --- the matrix


def test_the_matrix_has_every_combination_once() -> None:
    cells = matrix.plans()
    assert len({(c.window, c.provider, c.attempt, c.cancel) for c in cells}) == len(cells) == 6 * 5 * 3 * 2
    assert len({c.id for c in cells}) == len(cells)


def test_a_sample_goes_round_windows_and_providers_and_is_the_same_for_a_seed() -> None:
    def shapes(seed: int) -> list[tuple[str, str, int, bool]]:
        return [(c.window, c.provider, c.attempt, c.cancel) for c in matrix.plans(sample=30, seed=seed)]

    assert shapes(1) == shapes(1) != shapes(2)
    assert {(window, provider) for window, provider, _, _ in shapes(1)} == {(w, p) for w in POINTS for p in PROVIDERS}


@pytest.mark.parametrize(
    "wrong",
    [
        ("nowhere", "contract", "exit", 1),
        ("after_claim", "slow", "exit", 1),
        ("after_claim", "contract", "guess", 1),
        ("after_claim", "contract", "exit", 4),
    ],
)
def test_a_plan_for_what_does_not_exist_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"no drill|from 1 to 3"):
        Plan.make(*wrong)
