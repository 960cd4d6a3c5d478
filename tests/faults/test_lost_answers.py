"""Answers lost, statements lost, statements that arrive late: nothing is lost, doubled or run again on a guess.

Each test drives real pools through the fault proxy under load, and judges by the database and by the log in which
every handler notes that it was entered.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from deadsure.drills.ledger_process import LedgerProcess
from deadsure.runtime.ids import uuid7
from deadsure.runtime.model import EffectEnd, Outcome
from deadsure.runtime.store import effects, submit
from kit.aftermath import entered, per_task, settled, until_told
from kit.fault_proxy import FaultProxy
from kit.fault_rules import Fault
from kit.pool import Answer, Pool, dsn_text
from kit.scale import count
from kit.store import Store
from kit.wait import wait_until

pytestmark = pytest.mark.faults
NewPool = Callable[..., Pool]
FAULTS = [Fault.DROPPED, Fault.ANSWER_LOST, Fault.LATE]
ONE_DIRECTION = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.lower())
HITS = count(long=200, ci=20)
OPTIONS = {"POOL_POLL_INTERVAL": "0.1", "HTTP_REQUEST_BUDGET": "10"}


@pytest.fixture
def pool(new_pool: NewPool, store: Store, proxy: FaultProxy) -> Callable[..., Pool]:
    """Starts a pool that reaches the database through the proxy alone. The kit's own lease outlives every test."""
    store.query("update deadsure.incarnations set lease_until = lease_until + interval '1 day'")

    def start(workers: int = 4, **options: str) -> Pool:
        through = {"DATABASE_DSN": dsn_text(proxy.through(store.settings))}
        return new_pool(workers=workers, options=OPTIONS | through | options).start()

    return start


def _hit(proxy: FaultProxy, statement: str, fault: Fault, times: int, chance: float, **more: Any) -> None:
    """Have the fault meet this statement at random, so many times in all, with FIN and with RST."""
    for times_each, cut in ((times // 2, "close"), (times - times // 2, "reset")):
        proxy.add(statement, fault, times=times_each, chance=chance, cut=cut, **more)


def _hit_in_doubt(proxy: FaultProxy, statement: str, fault: Fault, chance: float) -> None:
    """As `_hit`, each time another request; what comes late comes at once, beside its repeat, and after it."""
    if fault is not Fault.LATE:
        _hit(proxy, statement, fault, HITS, chance, once=True)
        return
    part = HITS // 3
    _hit(proxy, statement, fault, part, chance / 2, delay=0.01, once=True)
    _hit(proxy, statement, fault, part, chance / 2, until=statement, when_sent=True, fresh=True, once=True)
    _hit(proxy, statement, fault, HITS - 2 * part, chance / 2, until=statement, fresh=True, once=True)


# --- the hot statement, and the finish of what it cannot do


@ONE_DIRECTION
def test_a_hot_statement_is_settled_by_reading(
    pool: Callable[..., Pool], store: Store, proxy: FaultProxy, fault: Fault, tmp_path: Path
) -> None:
    running = pool()
    log = tmp_path / "log"
    # One for each task; for many that do no harm; and the finish of what neither of them knows.
    many, alone = HITS // 5, HITS // 5
    single = HITS - many - alone
    after = {"until": "slot_take_over", "fresh": True} if fault is Fault.LATE else {}
    if fault is Fault.LATE:
        # Before it is settled, meanwhile, and after; and in a session that the worker does not know and cannot end.
        part = single // 4
        _hit(proxy, "finish_and_claim", fault, part, 0.05)
        _hit(proxy, "finish_and_claim", fault, part, 0.05, delay=0.02)
        _hit(proxy, "finish_and_claim", fault, part, 0.05, delay=0.02, fresh=True)
        single -= 3 * part
    _hit(proxy, "finish_and_claim", fault, single, 0.1, **after)
    _hit(proxy, "finish_and_claim_many", fault, many, 0.3, **after)
    _hit(proxy, "finish_alone", fault, alone, 0.3, **after)
    submitted = _work_until(store, log, lambda: len(proxy.happened(fault.value)) >= HITS)
    rows = settled(store, submitted)
    wait_until(lambda: proxy.held() == 0, "everything late was delivered")

    runs = per_task(entered(log))
    for row in rows:
        assert (row["state"], row["attempts"]) == ("succeeded", 2 if row["kind"] == "flaky" else 1), row
        assert runs[str(row["id"])] == row["attempts"], row
    until_told(running, "a step is in doubt", HITS)
    read, again = running.log.count("settled by reading"), running.log.count("a lost statement was not carried out")
    assert read + again == HITS
    if fault is not Fault.LATE:
        assert (read == 0) == (fault is Fault.DROPPED)
    after_settling = [h.answer for h in proxy.happened("delivered") if h.rule.until]
    assert all(answer.rows[0][0] == b"f" for answer in after_settling if answer), "a late copy did something"
    assert {worker["exits"] for worker in running.get("/workers").body["workers"]} == {0}
    print(f"{HITS} x {fault.value}, {len(rows)} tasks; happened {read}, not carried out {again}")
    assert running.stop() == 0


def test_the_settling_can_lose_its_own_answers(
    pool: Callable[..., Pool], store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    running = pool(workers=2)
    hits = count(long=50)
    proxy.add("finish_and_claim", Fault.ANSWER_LOST, chance=0.2)
    for fault in FAULTS:
        proxy.add("slot_take_over", fault, times=hits, chance=0.5, delay=0.3)
    log = tmp_path / "log"
    submitted = _work_until(store, log, lambda: _hits(proxy, "slot_take_over") >= len(FAULTS) * hits)
    proxy.no_more_faults()
    rows = settled(store, submitted)
    runs = per_task(entered(log))
    for row in rows:
        assert (row["state"], runs[str(row["id"])]) == ("succeeded", row["attempts"]), row
    assert {worker["exits"] for worker in running.get("/workers").body["workers"]} == {0}
    print(
        f"{hits} x each at the settling, {len(proxy.happened('answer lost', 'finish_and_claim'))} statements in doubt"
    )


def _hits(proxy: FaultProxy, statement: str) -> int:
    return sum(len(proxy.happened(fault.value, statement)) for fault in FAULTS)


def _work_until(store: Store, log: Path, enough: Callable[[], bool]) -> list[UUID]:
    """Keep the queue filled, not through the proxy, until there were enough faults."""
    submitted: list[UUID] = []
    kinds = itertools.cycle(("count.fail", "count.unknown", "note", "flaky"))

    def full() -> bool:
        waiting = store.query("select count(*) as n from deadsure.ready")[0]["n"]
        if int(str(waiting)) < 20:
            payload = f'{{"log": "{log}", "fail": 1}}'
            new = [submit.Submission(uuid7(), next(kinds), payload) for _ in range(40)]
            verdicts = submit.submit(store.connection, new)
            assert all(isinstance(verdict, submit.Accepted) for verdict in verdicts)
            submitted.extend(task.id for task in new)
        return enough()

    wait_until(full, f"{HITS} faults", 600)
    return submitted


# --- submit


class Clients:
    """Threads that submit over HTTP, every second one under an Idempotency-Key, and note what they were answered.

    What was answered with 503 is sent again under the same key; without a key nobody may.
    """

    def __init__(self, pool: Pool, log: Path) -> None:
        self._pool = pool
        self._log = log
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(8)
        self.accepted: dict[int, str] = {}
        self.in_doubt: dict[int, str] = {}
        self.answers: Counter[str] = Counter()

    def __enter__(self) -> Clients:
        self._running = [self._threads.submit(self._go_on) for _ in range(8)]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads.shutdown()
        for running in self._running:
            running.result()

    def _go_on(self) -> None:
        while not self._over.is_set():
            number = next(self._numbers)
            key = {"Idempotency-Key": f"key-{number}"} if number % 2 else {}
            answer = self._post(number, key)
            while key and answer.status == 503:
                answer = self._post(number, key)
            if answer.status == 202:
                self.accepted[number] = answer.body["id"]
            else:
                assert answer.body["type"] == "urn:deadsure:problem:outcome-in-doubt", answer
                self.in_doubt[number] = answer.body["task_id"]

    def _post(self, number: int, key: dict[str, str]) -> Answer:
        body = {"kind": "count.fail", "payload": {"log": str(self._log), "number": number}}
        answer = self._pool.post("/tasks", body, key)
        self.answers[str(answer.status)] += 1
        return answer


@ONE_DIRECTION
def test_a_submit_is_stored_once(
    pool: Callable[..., Pool], store: Store, proxy: FaultProxy, fault: Fault, tmp_path: Path
) -> None:
    running = pool(workers=2)
    _hit_in_doubt(proxy, "submit", fault, 0.2)
    log = tmp_path / "log"
    with Clients(running, log) as clients:
        wait_until(lambda: len(proxy.happened(fault.value)) >= HITS, f"{HITS} faults", 600)
    wait_until(lambda: proxy.held() == 0, "everything late was delivered")

    stored = {
        row["id"]: row["number"] for row in store.query("select id, payload ->> 'number' as number from deadsure.tasks")
    }
    numbers = Counter(int(str(number)) for number in stored.values())
    assert max(numbers.values()) == 1, "one request became two tasks"
    for number, id in clients.accepted.items():
        assert stored.get(UUID(id)) == str(number), "an accepted task is lost"
    for number, id in clients.in_doubt.items():
        assert number not in numbers or stored.get(UUID(id)) == str(number), "it was named wrongly"
    rows = settled(store, stored)  # type: ignore[arg-type]
    runs = per_task(entered(log))
    assert {row["state"] for row in rows} == {"succeeded"}
    assert runs == Counter({str(row["id"]): 1 for row in rows})
    until_told(running, "a statement is in doubt", HITS)
    until_told(running, "a lost answer was settled by repeating", HITS)
    print(f"{HITS} x {fault.value}, {len(rows)} tasks, answers {dict(clients.answers)}")
    assert running.stop() == 0


# --- recover


@ONE_DIRECTION
def test_a_death_is_settled_once(
    pool: Callable[..., Pool], store: Store, proxy: FaultProxy, fault: Fault, tmp_path: Path
) -> None:
    running = pool(LOG_LEVEL="info")
    log = tmp_path / "log"
    rule = {"application": "deadsure supervisor", "once": True}
    inside = HITS // 5
    for statement in ("end_slots", "settle"):
        _hit(proxy, statement, fault, inside, 0.6, **rule, delay=0.1)
    # A late COMMIT: before the repeat, or while the repeat waits for its locks.
    late = {"until": "end_slots", "when_sent": True} if fault is Fault.LATE else {}
    _hit(proxy, "commit", fault, inside, 0.6, after="settle", delay=0.1, **rule)
    _hit(proxy, "commit", fault, HITS - 3 * inside, 1.0, after="settle", delay=0.1, **rule, **late)
    submitted = _kill_until(running, store, log, lambda: len(proxy.happened(fault.value)) >= HITS)
    rows = settled(store, submitted)

    runs = per_task(entered(log))
    recovered = store.query(
        "select task_id, detail ->> 'fence' as fence from deadsure.events where event = 'recovered'"
    )
    assert max(Counter((row["task_id"], row["fence"]) for row in recovered).values()) == 1, "a death was settled twice"
    deaths = Counter(row["task_id"] for row in recovered)
    for row in rows:
        # A task that was given back unstarted keeps its fence, and not its attempt.
        assert row["fence"] >= row["attempts"] + deaths[row["id"]], row
        assert runs[str(row["id"])] <= row["attempts"], row
        if row["kind"] != "note":
            assert (row["attempts"], row["fence"]) == (1, 1 + deaths[row["id"]]), row
            assert (row["state"] == "succeeded") == (deaths[row["id"]] == 0), row
    until_told(running, "a dead worker's task was settled", len(recovered))
    until_told(running, "a death is not settled yet", HITS)
    print(f"{HITS} x {fault.value}, {len(recovered)} tasks of the dead, {len(rows)} tasks")
    assert running.stop() == 0


def _kill_until(pool: Pool, store: Store, log: Path, enough: Callable[[], bool]) -> list[UUID]:
    """Kill busy workers, with tasks flowing, until there were enough faults."""
    submitted: list[UUID] = []
    kinds = itertools.cycle(("count.fail", "count.unknown", "note"))

    def one_more() -> bool:
        waiting = store.query("select count(*) as n from deadsure.ready")[0]["n"]
        if int(str(waiting)) < 8:
            payload = f'{{"log": "{log}", "seconds": 0.2}}'
            submitted.extend(store.submit(next(kinds), payload) for _ in range(8))
        for worker in pool.get("/workers").body["workers"]:
            if worker["task"] is not None and not enough():
                with suppress(ProcessLookupError):
                    os.kill(worker["pid"], signal.SIGKILL)
        return enough()

    wait_until(one_more, f"{HITS} faults", 900)
    return submitted


def test_a_start_reports_what_it_recovered_though_its_answer_was_lost(
    pool: Callable[..., Pool], store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    running = pool(workers=1)
    for number, fault in enumerate(FAULTS, 1):
        task = store.submit("block.fail", f'{{"go": "{tmp_path / "never"}"}}')
        wait_until(lambda task=task: store.row(task)["state"] == "running", "it runs")  # type: ignore[misc]
        running.kill_all()
        proxy.add("commit", fault, application="deadsure supervisor", after="slots_of", times=1)
        running.start()
        proxy.wait(fault.value)
        assert store.row(task)["state"] == "failed"
        assert running.log.count("recovered previous pool: failed=1 unknown=0 queued=0") == number, running.log
    assert len(store.query("select 1 as one from deadsure.events where event = 'recovered'")) == len(FAULTS)


# --- resolve


@ONE_DIRECTION
def test_a_decision_is_taken_once(pool: Callable[..., Pool], store: Store, proxy: FaultProxy, fault: Fault) -> None:
    running = pool(workers=1)
    unknown = _unknown_tasks(store, 3 * HITS)
    _hit_in_doubt(proxy, "resolve", fault, 0.4)

    def decide(task: UUID) -> Answer:
        state = ("succeeded", "failed", "canceled")[task.int % 3]
        headers = {"If-Match": '"3"', **({"Idempotency-Key": "mine"} if task.int % 2 else {})}
        body = {"state": state, "evidence": f"seen {task}"}
        answer = running.post(f"/tasks/{task}/resolution", body, headers)
        assert answer.status == 200, answer
        assert answer.body["state"] == state
        return answer

    with ThreadPoolExecutor(8) as people:
        list(people.map(decide, unknown))
    wait_until(lambda: proxy.held() == 0, "everything late was delivered")
    assert len(proxy.happened(fault.value)) == HITS
    rows = store.query(
        "select t.id, t.state, d.decided, d.evidence, e.event from deadsure.tasks t"
        " left join deadsure.decisions d on d.task_id = t.id"
        " left join deadsure.events e on e.task_id = t.id and e.event = 'resolved'"
    )
    assert sorted(str(row["id"]) for row in rows) == sorted(str(task) for task in unknown)
    for row in rows:
        assert (row["state"], row["evidence"], row["event"]) == (row["decided"], f"seen {row['id']}", "resolved")
    assert {answer.rows[0][1] for answer in _answers(proxy, "delivered") if answer} <= {b"f", b"t"}
    until_told(running, "a statement is in doubt", HITS)
    until_told(running, "a lost answer was settled by repeating", HITS)
    print(f"{HITS} x {fault.value}, {len(rows)} decisions")


def test_a_decision_that_stayed_in_doubt_is_found_again_under_its_key(
    pool: Callable[..., Pool], store: Store, proxy: FaultProxy
) -> None:
    running = pool(workers=1, HTTP_REQUEST_BUDGET="0.5")
    keyed, bare = _unknown_tasks(store, 2)
    body = {"state": "failed", "evidence": "seen"}
    tag, key = {"If-Match": '"3"'}, {"Idempotency-Key": "mine"}
    proxy.add("resolve", Fault.ANSWER_LOST)
    for task, headers in ((keyed, tag | key), (bare, tag)):
        answer = running.post(f"/tasks/{task}/resolution", body, headers)
        assert (answer.status, answer.body["type"]) == (503, "urn:deadsure:problem:outcome-in-doubt")
    proxy.no_more_faults()
    again = running.post(f"/tasks/{keyed}/resolution", body, tag | key)
    assert (again.status, again.body["state"]) == (200, "failed")
    other = running.post(f"/tasks/{keyed}/resolution", body | {"evidence": "seen again"}, tag | key)
    assert (other.status, other.body["type"]) == (422, "urn:deadsure:problem:idempotency-key-reused")
    other = running.post(f"/tasks/{keyed}/resolution", body, tag | key | {"Deadsure-Actor": "somebody else"})
    assert other.status == 422
    assert running.post(f"/tasks/{keyed}/resolution", body, tag | {"Idempotency-Key": "yours"}).status == 412
    assert running.post(f"/tasks/{bare}/resolution", body, tag).status == 412
    assert len(store.query("select 1 as one from deadsure.decisions")) == 2


def _answers(proxy: FaultProxy, what: str) -> list[Any]:
    return [happening.answer for happening in proxy.happened(what)]


def _unknown_tasks(store: Store, number: int) -> list[UUID]:
    """So many tasks whose providers gave no clear answer, each at version 3."""
    worker = store.worker()
    made = []
    for _ in range(number):
        made.append(store.submit("plain"))
        task = worker.claim()
        assert task is not None
        end = Outcome("unknown", effect=EffectEnd(False, "decision", "ambiguous_answer"))
        worker.slot = effects.finish_alone(worker.connection, worker.slot, task, end).slot
    return made


# --- an effect, from its submit to its receipt


def test_a_ledger_sees_one_request_wherever_an_answer_is_lost(
    new_pool: NewPool, store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    with LedgerProcess(tmp_path / "book") as ledger:
        running = new_pool(
            app="deadsure.drills.demo:app",
            options={"POOL_POLL_INTERVAL": "30", "DATABASE_DSN": dsn_text(proxy.through(store.settings))},
            environment={"DEADSURE_LEDGER_URL": ledger.url},
        ).start()
        places = ("submit", "finish_and_claim", "finish_alone")
        for number, (statement, fault) in enumerate(itertools.product(places, FAULTS), 1):
            where = {"until": "submit"} if statement == "submit" else {"until": "slot_take_over", "fresh": True}
            wait_until(lambda: _idle(running), "the worker has nothing more to ask")
            proxy.add(statement, fault, times=1, **(where if fault is Fault.LATE else {}))
            body = {"kind": "ledger.transfer", "payload": {"account": f"a{number}", "amount": 5}}
            posts = [running.post("/tasks", body, {"Idempotency-Key": f"k{number}"}) for _ in range(2)]
            assert [answer.status for answer in posts] == [202, 202]
            assert posts[0].body["id"] == posts[1].body["id"]
            task = running.wait_for(posts[0].body["id"], "succeeded", "failed", "unknown")
            assert len(proxy.happened(fault.value, statement)) == 1
            assert (task["state"], task["attempts"]) == ("succeeded", 1)
            assert ledger.history.posts[task["effect"]["key"]] == 1
            wait_until(lambda: proxy.held() == 0, "what was late is delivered")
        (claim,) = proxy.happened(Fault.ANSWER_LOST.value, "finish_and_claim")
        assert b'"kind":"ledger.transfer"' in claim.answer.rows[0][-1]  # type: ignore[union-attr]
        assert ledger.history.posts.total() == ledger.history.effects.total() == len(places) * len(FAULTS)
        assert len(store.query("select id from deadsure.tasks")) == len(places) * len(FAULTS)
        assert store.query("select 1 as one from deadsure.events") == []


def _idle(pool: Pool) -> bool:
    return all(worker["state"] == "idle" for worker in pool.get("/workers").body["workers"])
