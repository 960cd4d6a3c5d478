"""Results, errors and receipts that cannot be stored end in one way each; nothing stays running or is run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadsure import App, Backoff, Contract, Intent
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import executor
from deadsure.testing import Ledger
from kit.api import fresh_store
from kit.pool import Pool, new_runtime_dir
from kit.unstorable import CONVERTED, RAISED, VALUES, Careless


@pytest.fixture(scope="module")
def pool(server: EmbeddedPostgres) -> Iterator[Pool]:
    """One pool with one worker for all tests of this file; the worker must live through all of them."""
    with fresh_store(server) as store:
        made = Pool(store.settings, new_runtime_dir(), app="kit.unstorable:app").start()
        try:
            before = made.worker_pids()
            yield made
            assert made.worker_pids() == before, made.log
        finally:
            made.close()


def run_all(pool: Pool, kind: str, payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run a task for each, and after each one that is right: its result would show that the answers have shifted."""
    tasks = []
    for number, payload in enumerate(payloads):
        tasks += [{"kind": kind, "payload": payload}, {"kind": "echo", "payload": number}]
    accepted = pool.post("/tasks/batch", {"tasks": tasks}).body["tasks"]
    ended = [pool.wait_for(task["id"], "succeeded", "failed", "unknown", deadline=60) for task in accepted]
    assert [task["result"] for task in ended[1::2]] == list(range(len(payloads)))
    return ended[::2]


@pytest.mark.parametrize("kind", ["return", "return.async", "return.together"])
def test_a_result_that_cannot_be_stored_fails_the_task_once(pool: Pool, kind: str) -> None:
    for what, task in zip(VALUES, run_all(pool, kind, [{"what": what} for what in VALUES]), strict=True):
        assert (task["state"], task["attempts"], task["result"]) == ("failed", 1, None), what
        assert task["failure_reason"].startswith("result_not_storable: "), what


def test_a_result_that_json_can_show_is_kept(pool: Pool) -> None:
    for what, task in zip(CONVERTED, run_all(pool, "return", [{"what": what} for what in CONVERTED]), strict=True):
        assert (task["state"], task["result"]) == ("succeeded", CONVERTED[what][1]), what


@pytest.mark.parametrize("kind", ["raise", "raise.async"])
def test_whatever_is_raised_is_told_in_a_text_that_can_be_stored(pool: Pool, kind: str) -> None:
    for what, task in zip(RAISED, run_all(pool, kind, [{"what": what} for what in RAISED]), strict=True):
        assert (task["state"], task["failure_reason"]) == ("failed", RAISED[what][1]), what


def test_an_intent_that_cannot_be_sent_fails_the_task_and_calls_nobody(pool: Pool) -> None:
    cases = [*VALUES, "no intent"]
    for what, task in zip(cases, run_all(pool, "intent", [{"what": what} for what in cases]), strict=True):
        assert (task["state"], task["attempts"], task["effect"]["fingerprint"]) == ("failed", 1, None), what


def test_a_receipt_that_proves_it_settles_it_whatever_else_it_holds(pool: Pool, tmp_path: Path) -> None:
    payloads = [{"what": f"a field with {what}", "log": str(tmp_path / "log")} for what in VALUES]
    for payload, task in zip(payloads, run_all(pool, "receipt", payloads), strict=True):
        assert (task["state"], task["attempts"]) == ("succeeded", 1), payload
        shown = task["effect"]["receipt"]
        assert shown["fields"] == payload
        assert shown["left_out"]
        assert task["result"] == {"receipt_id": "r-1", **payload}
    assert len((tmp_path / "log").read_text().splitlines()) == len(payloads)


WORTHLESS = [
    *(f"an id with {what}" for what in VALUES),
    *(f"{part} with {what}" for part in ("a key", "a proof") for what in ("NUL", "too large", "an object that raises")),
    *("no fields", "cut", "nothing", "a dict", "evil"),
]


def test_a_receipt_that_proves_nothing_leaves_the_task_unknown(pool: Pool, tmp_path: Path) -> None:
    payloads = [{"what": what, "log": str(tmp_path / "log")} for what in WORTHLESS]
    for payload, task in zip(payloads, run_all(pool, "receipt", payloads), strict=True):
        assert (task["state"], task["attempts"]) == ("unknown", 1), payload
        assert (task["unknown"]["cause"], task["unknown"]["needs"]) == ("receipt_mismatch", "decision"), payload
    assert len((tmp_path / "log").read_text().splitlines()) == len(payloads)


def test_what_a_provider_raises_is_told_in_a_text_that_can_be_stored(pool: Pool, tmp_path: Path) -> None:
    cases = ["rejected", "ambiguous", "mute"]
    tasks = run_all(pool, "receipt", [{"what": what, "log": str(tmp_path / "log")} for what in cases])
    assert [task["state"] for task in tasks] == ["failed", "unknown", "unknown"]
    assert tasks[0]["failure_reason"] == r"Rejected: a\x00\ud800"
    told = [pool.get(f"/tasks/{task['id']}/events").body["events"][0]["detail"]["reason"] for task in tasks[1:]]
    assert told == [r"Ambiguous: a\x00\ud800", "Mute: (its text cannot be shown)"]


def test_a_lookup_settles_by_the_proof_alone_and_by_nothing_less(pool: Pool, tmp_path: Path) -> None:
    good = [f"a field with {what}" for what in VALUES]
    bad = [f"an id with {what}" for what in VALUES]
    tasks = {
        what: pool.submit("receipt.looked_up", {"what": what, "log": str(tmp_path / "log")}) for what in (*good, *bad)
    }
    for what in good:
        task = pool.wait_for(tasks[what], "succeeded", deadline=60)
        assert task["effect"]["receipt"]["left_out"], what
    for what in bad:
        assert pool.wait_for(tasks[what], "unknown")["unknown"]["needs"] == "lookup", what
    assert len((tmp_path / "log").read_text().splitlines()) == len(tasks)


# --- without a pool


@pytest.mark.parametrize("what", VALUES)
def test_what_cannot_be_stored_is_never_encoded(what: str) -> None:
    with pytest.raises(executor.NotStorable, match=r"^result_not_storable: "):
        executor.encode_result(VALUES[what]())


def _named(**attributes: Any) -> Careless:
    made = Careless("bank")
    vars(made).update(attributes)
    return made


async def _later(*_: object) -> None:
    """What no provider may be."""


@pytest.mark.parametrize(
    "provider",
    [
        _named(name="a\0b"),
        _named(name=5),
        _named(identity="\ud800"),
        _named(identity=""),
        _named(timeout=float("nan")),
        _named(timeout=0),
        _named(perform=_later),
        _named(lookup=_later),
        _named(contract={"lookup": True}),
        _named(contract=Contract(True, True, float("nan"), 0)),
        _named(contract=Contract(True, True, 1, -1)),
        _named(contract=Contract(True, True, 1, 1, (5,))),  # type: ignore[arg-type]
    ],
    ids=lambda provider: list(vars(provider))[-1],
)
def test_a_provider_that_cannot_be_meant_is_refused_when_it_is_registered(provider: Any) -> None:
    with pytest.raises(ValueError, match=r"provider|bank"):
        App().effect("pay", provider=provider)


def test_an_effect_takes_nothing_but_its_payload() -> None:
    with pytest.raises(ValueError, match="and nothing else"):
        App().effect("pay", provider=Ledger())(lambda payload, context: Intent())


@pytest.mark.parametrize("numbers", [{"first": float("nan")}, {"factor": -1}, {"longest": 1e300}, {"first": "1"}])
def test_a_backoff_that_cannot_be_meant_is_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        Backoff(**numbers)


@pytest.mark.parametrize("make", [lambda: Intent(a="x" * 300_000), lambda: Intent(a=VALUES["far too deep"]())])
def test_an_intent_has_an_end(make: Callable[[], Intent]) -> None:
    with pytest.raises(ValueError, match="intent"):
        make()
