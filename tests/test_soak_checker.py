"""The soak's judge: what is as it must be passes, and every planted violation of every invariant is found and named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deadsure.drills.soak import judge, report, runs
from deadsure.drills.soak.facts import Decision, Event, Facts, Harm, Incarnation, Look, Task, Transaction
from deadsure.drills.soak.history import Asked, Call, Shown
from deadsure.drills.soak.plan import DECK, KINDS, SoakPlan, draw
from deadsure.drills.soak.proxy import Session
from deadsure.drills.soak.runs import Run, RunLog
from deadsure.runtime.effects import key_for

PLAN = SoakPlan(10, 7, "a" * 12)
K = {kind.what: f"{PLAN.name}.{kind.what}" for kind in KINDS}


def task(id: str, what: str = "unknown", state: str = "succeeded", **more: Any) -> Task:
    """A task that ran once under fence 1 and succeeded, unless it is said otherwise."""
    effect = what not in ("requeue", "unknown", "fail")
    done = state == "succeeded"
    made: dict[str, Any] = {
        "id": id, "kind": K[what], "key": f"key-{id}", "state": state, "attempts": 1, "fence": 1, "version": 5,
        "max_attempts": PLAN.kinds[K[what]].max_attempts, "cancel_requested": False, "payload": {"of": id},
        "has_result": done, "result": ({"receipt_id": f"r-{id}"} if effect else {"fence": 1}) if done else None,
        "receipt": {"receipt_id": f"r-{id}"} if done and effect else None, "failure_reason": None,
        "cause": "worker_died" if state == "unknown" else None, "needs": "decision" if state == "unknown" else None,
        "proof": None, "effect_key": key_for(id) if effect else None, "unsettled": False, "sender_gone": False,
        "in_unknowns": state == "unknown",
    }  # fmt: skip
    return Task(**made | more)


def shown(row: Task, **more: Any) -> Shown:
    """As an answer shows it."""
    names = (
        "id",
        "kind",
        "state",
        "fence",
        "attempts",
        "max_attempts",
        "cancel_requested",
        "payload",
        "result",
        "version",
    )
    return Shown(**{name: getattr(row, name) for name in names} | more)


def line(event: str, id: str, **more: Any) -> dict[str, Any]:
    """A line of a ledger's book."""
    return {"event": event, "key": key_for(id), "at": 1.0, "request": "bytes", "receipt_id": f"r-{id}", **more}


def run(row: Task, fence: int = 1, pid: int = 100, **more: Any) -> Run:
    what: Any = "handler" if row.effect_key is None else "perform"
    made: dict[str, Any] = {"attempt": 1, "start": 10.0, "end": 10.1, "how": "returned"}
    return Run(row.id, row.kind, what, fence, pid=pid, **made | more)


def event(row: Task, what: str, number: int = 1, at: float = 11.0, **detail: Any) -> Event:
    return Event(row.id, number, at, what, {"fence": 2, **detail})


def asked_for(row: Task) -> Asked:
    return Asked(f"key-{row.id}", row.kind, row.payload)


NUMBERS = count(100)


def call(verb: Any, status: int | None, start: float = 20.0, **more: Any) -> Call:
    return Call(next(NUMBERS), verb, start, start + 0.1, status, **more)


PLAIN = task("plain")
DONE = task("done", "contract")
KILLED = task("killed", state="unknown", fence=2)
AGAIN = task("again", "requeue", fence=3, attempts=2, result={"fence": 3})
CANCELED = task("canceled", "fail", "canceled", cancel_requested=True, attempts=0, fence=0)
DECIDED = task("decided", "none", "failed", fence=2, failure_reason="resolved", effect_key=key_for("decided"))
BEFORE = {"state": "unknown", "cancel_requested": False, "attempts": 1, "cause": "worker_died"}
SUBMITTED = call("submit", 202, 1.0, asked=(asked_for(PLAIN),),
                 shown=(shown(PLAIN, state="queued", fence=0, attempts=0, result=None, version=1),))  # fmt: skip
CLEAN = Facts(
    kinds=PLAN.kinds,
    calls=(
        SUBMITTED,
        call("submit", None, 1.0, asked=(asked_for(DONE),)),
        call("batch", None, 1.0, asked=tuple(map(asked_for, (KILLED, AGAIN, CANCELED, DECIDED)))),
        call("read", 200, 30.0, task="plain", shown=(shown(PLAIN),)),
        call("read", 503, 31.0, task="plain", problem="database-unavailable"),
        call("cancel", 202, 5.0, task="canceled", shown=(shown(CANCELED, version=2),)),
        call("cancel", 409, 40.0, task="plain", problem="already-finished"),
        call("resolve", None, 50.0, task="decided", decided="failed", evidence="the ledger"),
        call("resolve", 200, 51.0, task="decided", decided="failed", evidence="the ledger"),
    ),
    tasks={row.id: row for row in (PLAIN, DONE, KILLED, AGAIN, CANCELED, DECIDED)},
    events=(
        event(KILLED, "recovered", 1, proof="exit", to="unknown"),
        event(AGAIN, "recovered", 2, proof="pool_lock", to="queued"),
        event(CANCELED, "cancel_requested", 3, 5.05, to="canceled", fence=0),
        event(DECIDED, "recovered", 4, proof="lease", to="unknown"),
        event(DECIDED, "resolved", 5, 50.0, to="failed"),
    ),
    decisions=(Decision("decided", "loopback", "the ledger", "failed", BEFORE),),
    incarnations=(Incarnation("i", "lease", True), Incarnation("j", None, None)),
    books={K["contract"]: (line("post", "done"), line("effect", "done")), K["none"]: ()},
    runs=(
        run(PLAIN), run(DONE, pid=101), run(KILLED, end=None, how=None, pid=102), run(AGAIN, end=None, how=None),
        run(AGAIN, 3, 103, start=12.0, end=12.1, attempt=2), run(DECIDED, end=None, how=None, pid=104),
    ),
    transactions=(Transaction(100, "deadsure worker", 9.0, 9.1), Transaction(100, "deadsure worker", 10.2, 10.3)),
    looks=(Look(10.0), Look(11.0)),
    harm=(Harm("worker", 1, 102, 10.5, 10.6),),
)  # fmt: skip


#: A task whose every submit is given with it.
UNASKED = ("new",)


def having(*rows: Task, **more: Any) -> Facts:
    """The clean facts with these rows in the place of theirs, and these facts beside theirs."""
    added = {name: (*getattr(CLEAN, name), *found) for name, found in more.items() if name != "books"}
    books = {**CLEAN.books, **more.get("books", {})}
    asked = call("batch", None, 1.0, asked=tuple(asked_for(row) for row in rows if row.id not in UNASKED))
    added["calls"] = (*added.get("calls", CLEAN.calls), asked)
    return replace(CLEAN, tasks={**CLEAN.tasks, **{row.id: row for row in rows}}, books=books, **added)


def without(name: str, number: int) -> Facts:
    """The clean facts without this one of these."""
    found = list(getattr(CLEAN, name))
    del found[number]
    return replace(CLEAN, **{name: tuple(found)})


def test_what_is_as_it_must_be_passes() -> None:
    judged = judge.judge(CLEAN)
    assert judged.violations == ()
    assert judged.why == ()
    assert judged.value is True
    assert set(judged.verdicts.items()) == {(number, True) for number in range(14)}
    assert judged.outcomes.interrupted == {"unknown": 1, "succeeded": 1, "failed": 1}
    assert judged.outcomes.person == {"unknown": 1, "none": 1}


def changed(row: Task, **more: Any) -> Task:
    return replace(row, **more)


LOOKED_UP = task("looked-up", "lookup-only", "unknown", fence=2, sender_gone=True, needs="decision")
DEDUPED = task("deduped", "dedup-only", "unknown", fence=2, attempts=1)
UNCERTAIN = task("uncertain", "contract", "unknown", fence=2)


def recovered(row: Task, to: str = "unknown", proof: str | None = "exit") -> Event:
    return event(row, "recovered", 50, proof=proof, to=to)


def seen(row: Task, start: float = 60.0, **more: Any) -> Call:
    """A read that showed it like this."""
    return call("read", 200, start, task=row.id, shown=(shown(row, **more),))


def told(row: Task) -> Call:
    return call("submit", 202, 2.0, asked=(asked_for(row),), shown=(shown(row),))


BOOK = CLEAN.books[K["contract"]]
TWICE = (line("effect", "twice"), line("effect", "twice"))
PLANTED: list[tuple[int, str, Facts]] = [
    (1, "was run 2 times under fence 1", having(runs=[run(PLAIN, pid=200, start=11.0, end=11.1)])),
    (1, "no slot named it", having(looks=[Look(12.0, unnamed=("plain",))])),
    (1, "does not hold it", having(stray_slots=[("slot", "plain", 1)])),
    (1, "no pool is there any more", having(task("plain", state="running"))),
    (2, "has the result of fence 1, and its own is 3", having(changed(AGAIN, result={"fence": 1}))),
    (2, "no handler returned under fence 1", without("runs", 0)),
    (2, "was shown succeeded, and later failed", having(task("plain", state="failed"))),
    (2, "with another result", having(changed(PLAIN, result={"fence": 1, "more": 1}))),
    (2, "its fence went back", having(calls=[seen(AGAIN, fence=4)])),
    (2, "its version went back", having(calls=[seen(PLAIN, version=9)])),
    (3, "is failed with a result", having(changed(DECIDED, has_result=True))),
    (3, "is succeeded without a result", having(changed(PLAIN, has_result=False))),
    (3, "showed it queued with a result", having(calls=[seen(PLAIN, 0.1, state="queued", version=1)])),
    (4, "with the proof None", having(DECIDED, events=[recovered(DECIDED, proof=None)])),
    (4, "process 105 was alive in it",
     having(runs=[run(DECIDED, start=13.0, end=13.1, pid=105)], events=[recovered(DECIDED)])),
    (4, "which was not over", having(incarnations=[Incarnation("k", "lease", False)])),
    (5, "stood in neither ready nor scheduled", having(looks=[Look(12.0, nowhere=("plain",))])),
    (6, "there is no such task", having(calls=[told(task("lost"))])),
    (6, "is stored as something else", having(changed(PLAIN, payload={"of": "another"}))),
    (6, "was accepted for", having(changed(AGAIN, key="key-plain"), calls=[replace(SUBMITTED, shown=(shown(AGAIN),))])),
    (7, "was done 2 times by a ledger that does no key twice",
     having(books={K["contract"]: (*BOOK, line("effect", "done"))})),
    (7, "which is no such task's", having(books={K["contract"]: (*BOOK, line("post", "nobody"))})),
    (7, "with different requests under one key",
     having(books={K["contract"]: (*BOOK, line("post", "done", request="others"))})),
    (7, "has the key other", having(changed(DONE, effect_key="other"))),
    (7, "that does a key twice", having(task("twice", "lookup-only"), books={K["lookup-only"]: TWICE})),
    (8, "its on_death is unknown, and it was run 2 times", having(runs=[run(PLAIN, 2, start=12.0, end=12.1)])),
    (8, "2 requests were sent, without a contract", having(books={K["none"]: (line("post", "decided"),) * 2})),
    (8, "was settled by a lookup", having(events=[event(DECIDED, "reconciled", 60, to="queued")])),
    (8, "was queued again by a recovery", having(events=[recovered(DONE, "queued")])),
    (9, "has 9 attempts of 8", having(changed(AGAIN, attempts=9))),
    (9, "its kind allows 1", having(changed(PLAIN, max_attempts=2))),
    (9, "was run under 2 fences, and counts 1 attempts", having(changed(AGAIN, attempts=1))),
    (9, "showed 2 of 1", having(calls=[seen(PLAIN, 0.2, attempts=2, state="running", result=None, version=1)])),
    (10, "its cancel request is lost", having(changed(CANCELED, cancel_requested=False))),
    (10, "its cancel was accepted under 0", having(runs=[run(CANCELED, 1, start=30.0)])),
    (10, "was queued again (retry) after", having(events=[event(CANCELED, "retry", 90, to="queued")])),
    (10, "it ran under fence 1", having(runs=[run(CANCELED, 1, start=30.0)])),
    (10, "was canceled while it was queued, and ran", having(runs=[run(CANCELED, 0, start=30.0)])),
    (10, "with a request that is unsettled", having(changed(CANCELED, unsettled=True))),
    (10, "is failed, and the ledger has done it", having(task("done", "contract", "failed"))),
    (11, "was answered 404 no-such-task", having(calls=[call("read", 404, task="plain", problem="no-such-task")])),
    (11, "was answered 500 internal", having(calls=[call("cancel", 500, task="plain", problem="internal-error")])),
    (11, "was told that it is over, and it is not", having(calls=[call("cancel", 409, task="killed")])),
    (11, "every answer said that it is not", having(task("new"), runs=[run(task("new"))], calls=[
        call("submit", 503, problem="database-unavailable", asked=(asked_for(task("new")),))])),
    (11, "every cancel was answered as not done, and it was", having(changed(DONE, cancel_requested=True), calls=[
        call("cancel", 503, task="done", problem="database-unavailable")])),
    (11, "nobody asked for that", having(changed(CANCELED, cancel_requested=False))),
    (12, "names nobody, or no evidence", replace(CLEAN, decisions=(replace(CLEAN.decisions[0], actor=" "),))),
    (12, "nobody had been told so or could be in doubt", replace(CLEAN, calls=CLEAN.calls[:-2])),
    (12, "no decision is kept", replace(CLEAN, decisions=())),
    (12, "was decided more than once", having(decisions=CLEAN.decisions)),
    (12, "decided failed, and is succeeded", having(changed(DECIDED, state="succeeded", has_result=True))),
    (12, "is succeeded, and its events say unknown", having(task("killed", result={"fence": 1}), runs=[run(KILLED)])),
    (12, "is unknown, and its events say known", without("events", 0)),
    (12, "does not say why or what would settle it", having(changed(KILLED, in_unknowns=False))),
    (12, "retry made it queued while it was unknown", having(events=[event(KILLED, "retry", 70, to="queued")])),
    (13, "beside its handler", having(transactions=[Transaction(100, "deadsure worker", 10.05, 10.2)])),
    (13, "beside its perform", having(transactions=[Transaction(101, "deadsure worker", 9.0, 12.0)])),
    (13, "beside its lookup", having(runs=[Run("done", DONE.kind, "lookup", 2, 1, 300, 15.0, 15.5, "returned")],
                                     transactions=[Transaction(300, "deadsure worker", 15.1, 15.2)])),
    (0, "the ledger has not done it", having(books={K["contract"]: (line("post", "done"),)})),
    (0, "which the ledger never gave", having(changed(DONE, receipt={"receipt_id": "r-other"}))),
    (0, "without a receipt", having(changed(DONE, receipt=None))),
    (0, "a person decided so", having(books={K["none"]: (line("post", "decided"), line("effect", "decided"))})),
    (0, "a death made it queued", having(events=[recovered(PLAIN, "queued")])),
    (0, "its lookup shows that it was done", having(UNCERTAIN, events=[recovered(UNCERTAIN)], books={
        K["contract"]: (*BOOK, line("post", "uncertain"), line("effect", "uncertain"))})),
    (0, "under the same key", having(DEDUPED, events=[recovered(DEDUPED)])),
    (0, "who sent it is gone", having(LOOKED_UP, events=[recovered(LOOKED_UP)])),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "said", "facts"), PLANTED, ids=[f"{n}: {said}" for n, said, _ in PLANTED])
def test_a_planted_violation_is_found_and_named(invariant: int, said: str, facts: Facts) -> None:
    judged = judge.judge(facts)
    assert judged.value is False
    assert judged.verdicts[invariant] is False
    found = [violation for violation in judged.violations if violation.invariant == invariant]
    assert any(said in violation.what for violation in found), judged.violations
    text = report.text(PLAN, facts, [], judged, 1.0)
    assert said in text
    assert "VIOLATED" in text or invariant == 0


def test_every_invariant_has_a_planted_violation() -> None:
    assert {number for number, _, _ in PLANTED} == {0, *judge.CHECKS} == set(range(14))


# --- what is no verdict


def broken(facts: Facts) -> Iterator[Any]:
    raise ZeroDivisionError("of the check")
    yield


def test_an_exception_inside_a_check_is_unknown_and_never_a_pass() -> None:
    judged = judge.judge(CLEAN, {**judge.CHECKS, 7: broken})
    assert (judged.value, judged.verdicts[7], judged.verdicts[8]) == ("unknown", "unknown", True)
    assert judged.why == ("invariant 7 could not be judged: ZeroDivisionError: of the check",)
    assert json.loads(report.line(PLAN, 10, judged))["verdict"] == "unknown"
    assert "unknown  7." in report.text(PLAN, CLEAN, [], judged, 1.0)


def test_an_exception_beside_a_violation_does_not_hide_it() -> None:
    facts = having(task("plain", state="running"))
    assert judge.judge(facts, {**judge.CHECKS, 7: broken}).value is False


def test_facts_that_cannot_be_understood_are_unknown() -> None:
    judged = judge.judge(replace(CLEAN, kinds={}))
    assert judged.verdicts[9] == judged.verdicts[0] == "unknown"
    assert judged.value == "unknown"


def test_a_proxy_that_saw_no_transaction_proves_nothing() -> None:
    judged = judge.judge(replace(CLEAN, transactions=()))
    assert (judged.value, judged.verdicts[13]) == ("unknown", "unknown")


def test_facts_that_may_not_be_final_are_unknown() -> None:
    judged = judge.judge(replace(CLEAN, doubts=("3 tasks have not come to rest",)))
    assert judged.value == "unknown"
    assert "unknown: 3 tasks have not come to rest" in report.text(PLAN, CLEAN, [], judged, 1.0)


# --- what is fine although it looks odd


@pytest.mark.parametrize(
    "facts",
    [
        having(changed(UNCERTAIN, attempts=6), events=[recovered(UNCERTAIN)]),
        having(changed(UNCERTAIN, cancel_requested=True), events=[recovered(UNCERTAIN)]),
        having(changed(LOOKED_UP, sender_gone=False), events=[recovered(LOOKED_UP, proof="lease")]),
        having(changed(LOOKED_UP, sender_gone=False), events=[recovered(LOOKED_UP, proof="lease")], books={
            K["lookup-only"]: (line("lookup", "looked-up", answer="absent"), line("post", "looked-up"),
                               line("effect", "looked-up"))}),
    ],
    ids=["budget spent", "cancel requested", "the sender may live", "done after the last lookup"],
)  # fmt: skip
def test_what_no_contract_could_settle_needed_a_person(facts: Facts) -> None:
    judged = judge.judge(facts)
    assert judged.value is True, judged.violations
    assert judged.outcomes.person.total() == 3


def test_an_answer_that_did_not_come_counts_as_both_possible() -> None:
    asked = (asked_for(task("new")),)
    for status, problem in ((None, None), (503, "outcome-in-doubt")):
        sent = call("submit", status, problem=problem, asked=asked)
        assert judge.judge(having(task("new"), runs=[run(task("new"))], calls=[sent])).value is True
        assert judge.judge(having(calls=[sent])).value is True


def test_answers_that_overlap_have_no_order() -> None:
    late = call("read", 200, 30.05, task="plain", shown=(shown(PLAIN, state="running", result=None, version=4),))
    assert judge.judge(having(calls=[late])).value is True


# --- what is said


def test_the_last_line_has_its_keys_in_their_order() -> None:
    facts = having(calls=[told(task("lost"))], books={
        K["contract"]: (line("post", "done"), line("effect", "done"), line("effect", "done"), line("effect", "done")),
    })  # fmt: skip
    assert report.line(PLAN, 10, judge.judge(facts)) == (
        '{"kills":10,"lost":1,"duplicate_effects":2,"wrong_answers":0,"unknown_with_contract":0,"verdict":false,"seed":7}'
    )
    assert report.line(PLAN, 10, judge.judge(CLEAN)).endswith('"verdict":true,"seed":7}')


def test_a_run_without_a_violation_says_what_it_proves_and_no_more() -> None:
    facts = replace(CLEAN, harm=tuple(Harm("worker", 1, n, 10.0, 10.1) for n in range(300)))
    assert "fewer than 3/300 = 0.01 of such kills" in report.text(PLAN, facts, [], judge.judge(facts), 1.0)


def test_a_violation_is_told_with_its_history() -> None:
    facts = having(task("plain", state="failed"))
    text = report.text(PLAN, facts, [], judge.judge(facts), 1.0)
    for part in ("row: {", "call 100 submit", "handler of process 100 under fence 1, until 10.100: returned"):
        assert part in text, text


# --- what it is made of


def test_the_seed_decides_the_harm_and_a_deck_has_all_of_it() -> None:
    def cards(seed: int, database: bool = True) -> list[Any]:
        drawn = draw(SoakPlan(1, seed, "b"), database=database)
        return [next(drawn) for _ in range(sum(DECK.values()))]

    assert cards(1) == cards(1) != cards(2)
    assert {what: sum(card.what == what for card in cards(3)) for what in DECK} == DECK
    assert "database" not in {card.what for card in cards(3, database=False)}


def test_the_log_of_runs_keeps_what_a_kill_cut_short(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "runs")
    with log.run("handler", "a", "k", 1, 1):
        with pytest.raises(KeyError), log.run("lookup", "b", "k", 2, 1):
            raise KeyError("x")
        inside = runs.read(tmp_path / "runs")
    assert [(r.task, r.end is None, r.how) for r in inside] == [("a", True, None), ("b", False, "KeyError")]
    assert [(r.task, r.how) for r in runs.read(tmp_path / "runs")] == [("a", "returned"), ("b", "KeyError")]
    with (tmp_path / "runs").open("ab") as file:
        file.write(b'{"torn')
    assert len(runs.read(tmp_path / "runs")) == 2


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_proxy_knows_where_an_exchange_ends_however_it_is_cut(size: int) -> None:
    startup = b"\0\0\0\x29\0\3\0\0user\0me\0application_name\0a pool\0\0"
    startup = len(startup).to_bytes(4, "big") + startup[4:]
    bind, sync, query = b"B\0\0\0\x05x", b"S\0\0\0\4", b"Q\0\0\0\x0bcommit\0"
    nothing: Any = None
    session = Session(nothing, nothing, 1)
    data = startup + bind + sync + query
    found = [each for at in range(0, len(data), size) for each in session.exchanges(data[at : at + size])]
    assert found == [(startup, False), (bind + sync, True), (query, True)]
    assert session.application == "a pool"
    answers = b"D\0\0\0\x05ZZ\0\0\0\x05T" + b"Z\0\0\0\x05I"
    assert [s for at in range(0, len(answers), size) for s in session.readiness(answers[at : at + size])] == [
        b"T",
        b"I",
    ]
