"""docs/effects.md: what it says becomes of an unknown task is tried cell by cell, and its examples are run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest
from deadsure import Ambiguous, App, Call, Contract, Intent, NotSent, Provider, Rejected
from deadsure.drills.ledger_process import LedgerProcess
from deadsure.runtime import http_provider, points, reconciling
from deadsure.runtime.effects import key_for, mismatch
from deadsure.runtime.model import ExitProof, Wanted
from deadsure.runtime.performing import Attempt
from deadsure.runtime.store import pool, reconcile, recover
from deadsure.testing import Ledger
from kit.bank import Gate
from kit.command import environment
from kit.pages import Page, Shell, code, codes, load, same
from kit.pool import ROOT, Pool
from kit.store import Store
from kit.wait import wait_until
from kit.web import Unwell, serving

PAGE = Page.of("effects.md")
EXAMPLE = ROOT / "examples" / "stripe_like.py"


# --- the contract's table, cell by cell

FULL = Contract(lookup=True, dedups_by_key=True, key_retention=3600, settle_after=0)
CONTRACTS = {
    "lookup and dedup": FULL,
    "lookup only": replace(FULL, dedups_by_key=False),
    "dedup only": replace(FULL, lookup=False),
    "none": None,
}
ROWS = {row[0]: row[1:] for row in PAGE.table("The contract") if row[0] in CONTRACTS}


@dataclass
class Case:
    """One effect task whose worker dies, and whoever settles it afterwards."""

    store: Store
    app: App
    ledger: Ledger
    task: UUID

    @classmethod
    def of(cls, store: Store, contract: Contract | None) -> Case:
        app, ledger = App(), Ledger(contract=contract)

        @app.effect("transfer", provider=ledger, max_attempts=3)
        def transfer(payload: dict[str, Any]) -> Intent:
            return Intent(payload)

        pool.register_kinds(store.connection, app.kinds)
        return cls(store, app, ledger, store.submit("transfer", '{"account": "a", "amount": 5}'))

    def die(self, proof: str, *, done: bool) -> None:
        worker = self.store.worker()
        task = worker.claim(Wanted.from_queues(("default",), self.app.kinds))
        assert task is not None
        if done:
            assert Attempt(self.app.handler("transfer"), self.ledger, task, Gate(worker), lambda: True).run().effect
        if proof == "Exit":
            gone = ExitProof("SIGKILL", evidence={"senders_gone": True})
            recover.recover_worker(self.store.connection, worker.slot.id, gone)
            return
        me = self.store.new_incarnation()
        over = "update deadsure.incarnations set lease_until = clock_timestamp() where incarnation <> :me"
        self.store.query(over, me=me)
        assert len(recover.sweep(self.store.connection, me)[1]) == 1
        self.store.incarnation = me

    def settle(self) -> str:
        """What becomes of it by itself, in the page's words."""
        worker = self.store.worker()
        doubt = reconcile.claim_lookup(worker.connection, worker.slot.id, ["transfer"], 30)
        if doubt is not None:
            reconciling.settle(worker.connection, self.app, doubt, reconciling.ask(self.app, doubt))
        row = self.store.row(self.task)
        return {"queued": "queued again", "unknown": str(row["unknown_needs"])}.get(
            str(row["state"]), str(row["state"])
        )


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("column", range(4))
def test_what_becomes_of_an_unknown_task_is_what_the_page_says(store: Store, contract: str, column: int) -> None:
    case = Case.of(store, CONTRACTS[contract])
    proof, done = ("Exit", "Exit", "Lease", "Lease")[column], column % 2 == 1
    case.die(proof, done=done)
    assert case.settle() == ROWS[contract][column]
    assert case.ledger.effects.total() == int(done)


def test_the_columns_and_the_rows_are_these() -> None:
    head = next(line for line in PAGE.section("The contract").splitlines() if line.startswith("| Contract |"))
    named = [cell.strip() for cell in head.split("|")[2:-1]]
    assert named == ["Exit, not done", "Exit, done", "Lease, not done", "Lease, done"]
    assert list(ROWS) == list(CONTRACTS)


# --- the other tables


def test_every_field_of_a_contract_and_of_a_call_is_explained() -> None:
    named = [codes(row[0])[0] for row in PAGE.table("The contract") if row[0].startswith("`")]
    assert named == [field.name for field in fields(Contract)]
    assert [code(row[0]) for row in PAGE.table("A provider of your own")] == [field.name for field in fields(Call)]


def test_the_windows_are_those_of_the_drills() -> None:
    listed = [code(row[0]) for row in PAGE.table("What is guaranteed when it is killed")]
    assert tuple(listed) == points.POINTS
    assert all(point in PAGE.section("One attempt") for point in points.POINTS)


def test_the_statuses_that_say_nothing_are_those_of_the_provider() -> None:
    row = next(row for row in PAGE.table("The protocol of HttpProvider") if row[1] == "`Ambiguous`")
    assert {int(number) for number in re.findall(r"\b4\d\d\b", row[0])} == http_provider._UNDECIDED


# --- the examples


def test_the_first_example_is_an_application(tmp_path: Path) -> None:
    module = load("first_effect", PAGE.fenced("python")[0], tmp_path)
    registered = module.app.handler("transfer")
    assert registered.kind.max_attempts == 3
    assert isinstance(registered.provider, Provider)
    assert dict(registered.handler({"account": "a", "amount": 5})) == {"account": "a", "amount": 5}


def test_the_ledger_answers_as_the_page_says(tmp_path: Path) -> None:
    run, shows = PAGE.blocks("run"), PAGE.blocks("shows")
    with LedgerProcess(tmp_path / "book", env=environment()) as ledger:
        shell = Shell(tmp_path, {"http://127.0.0.1:8471": ledger.url})
        for name in ("perform", "lookup", "gap"):
            assert same(shell.type(run[name])) == same(shows[name]), name
    shown = json.loads(shows["perform"].splitlines()[0])
    assert shown["fingerprint"] == hashlib.sha256(b'{"account":"a","amount":5}').hexdigest()
    assert shown["fingerprint"] == Intent(account="a", amount=5).fingerprint


def test_the_function_for_a_service_closes_the_gap(store: Store) -> None:
    table, function = PAGE.blocks("sql")["transfer"].split(";\n\n", 1)
    store.query(table)
    store.query(function)

    def transfer(key: str, fence: int, body: str = "five", seconds: int = 10) -> str:
        text = "select transfer(:key, :fence, clock_timestamp() + make_interval(secs => :seconds), :body) as said"
        return str(store.query(text, key=key, fence=fence, seconds=seconds, body=body)[0]["said"])

    first = transfer("a", 1)
    assert first.startswith("201 ")
    assert transfer("a", 3) == first
    assert transfer("a", 2) == first
    assert transfer("a", 3, "six").startswith("422 ")
    assert transfer("a", 5, seconds=-1) == first
    assert transfer("b", 3, seconds=-1).startswith("412 this came")
    assert transfer("b", 2).startswith("412 a later")
    assert len(store.query("select 1 as one from transfers where receipt_id is not null")) == 1


def test_a_decision_is_made_and_kept_as_the_page_says(
    new_pool: Callable[..., Pool], store: Store, tmp_path: Path
) -> None:
    run, shows = PAGE.blocks("run"), PAGE.blocks("shows")
    with serving(Unwell) as port:
        variables = {"DEADSURE_LEDGER_URL": f"http://127.0.0.1:{port}"}
        pool = new_pool(app="deadsure.drills.demo:app", environment=variables).start()
        task = pool.submit("ledger.transfer_blind", {"account": "a", "amount": 5})
        pool.wait_for(task, "unknown")
        shell = Shell(tmp_path, env={"DEADSURE_URL": f"http://127.0.0.1:{pool.port}"})
        shell.type(f"id={task}")
        assert f"deadsure-{task}" in shell.type(run["find"])
        assert same(shell.type(run["decide"])) == same(shows["decide"])
    assert pool.task(task)["result"] == {"receipt_id": "r-12"}
    (audit,) = store.query(PAGE.blocks("sql")["audit"])
    assert (audit["actor"], audit["decided"]) == ("loopback (claimed: alice)", "succeeded")
    assert (audit["evidence"], audit["cause"]) == ("ledger of 30 Nov, line 12", "ambiguous_answer")
    assert audit["key"] == f"deadsure-{task}"


# --- the provider like Stripe


class Payments(Unwell):
    """An API like Stripe's: the first answer under a key is kept and given again. `script` is what it answers next."""

    charges: dict[str, dict[str, Any]]
    posts: Counter[str]
    script: list[tuple[int, dict[str, Any]]]
    hold: threading.Event

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.body()))
        key = self.headers["Idempotency-Key"]
        self.posts[key] += 1
        if self.script:
            self.answer(*self.script.pop(0))
            return
        first = key not in self.charges
        charge = self.charges.setdefault(key, _charge(form, f"ch_{len(self.charges) + 1}"))
        if first:
            self.hold.wait(20)
        self.answer(200, charge)


def _charge(form: dict[str, str], id: str) -> dict[str, Any]:
    metadata = {name: form[f"metadata[{name}]"] for name in ("deadsure_key", "deadsure_fingerprint")}
    money = {"amount": int(form["amount"]), "currency": form["currency"], "customer": form["customer"]}
    return {"id": id, "status": "succeeded", **money, "metadata": metadata}


@pytest.fixture
def payments() -> Iterator[tuple[type[Payments], int]]:
    """The API and its port; it holds nothing."""
    fresh: Any = {"charges": {}, "posts": Counter(), "script": [], "hold": threading.Event()}
    fresh["hold"].set()
    api = type("Fresh", (Payments,), fresh)
    with serving(api) as port:
        yield api, port


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load("stripe_like_example", EXAMPLE.read_text(), tmp_path_factory.mktemp("example"))


def a_call(**changes: Any) -> Call:
    intent = Intent(customer="cus_1", amount=500, currency="eur")
    task = "01a22c4c-2d2f-7dd6-b3ca-53cdeb0e9079"
    later = datetime.now(UTC) + timedelta(seconds=30)
    made = Call(task, "charge", 1, 1, key_for(task), intent, intent.fingerprint, intent.canonical, later, 10.0)
    return replace(made, **changes)


def provider_at(example: ModuleType, port: int) -> Any:
    return example.StripeLike(f"http://127.0.0.1:{port}", "acct_1", lambda: "secret")


def test_the_page_shows_what_the_file_holds() -> None:
    assert PAGE.blocks("file")["stripe_like"].rstrip() in EXAMPLE.read_text()
    assert "key_retention=23 h" in PAGE.section("One like Stripe")
    assert "key_retention=23 * HOUR" in EXAMPLE.read_text()


def test_a_charge_is_made_once_and_its_receipt_proves_it(example: ModuleType, payments: Any) -> None:
    api, port = payments
    provider, call = provider_at(example, port), a_call()
    receipt = provider.perform(call)
    assert mismatch(receipt, call.key, call.intent, provider.contract) is None
    assert provider.perform(replace(call, attempt=2, fence=3)) == receipt
    assert (len(api.charges), api.posts.total()) == (1, 2)


def test_a_charge_of_something_else_proves_nothing(example: ModuleType, payments: Any) -> None:
    api, port = payments
    provider, call = provider_at(example, port), a_call()
    provider.perform(call)
    for wrong in ({"amount": 501}, {"customer": "cus_2"}, {"metadata": {}}, {"id": ""}):
        api.script.append((200, api.charges[call.key] | wrong))
        assert mismatch(provider.perform(call), call.key, call.intent, provider.contract) is not None


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, {"status": "pending"}, Ambiguous),
        (200, {"status": "failed", "failure_code": "card_declined"}, Rejected),
        (400, {"error": {"type": "invalid_request_error", "code": "amount_too_small"}}, Rejected),
        (400, {"error": {"type": "idempotency_error"}}, Ambiguous),
        (401, {"error": {"type": "invalid_request_error"}}, NotSent),
        (402, {"error": {"type": "card_error", "code": "card_declined"}}, Rejected),
        (409, {"error": {"type": "invalid_request_error"}}, Ambiguous),
        (429, {"error": {"type": "rate_limit_error"}}, Ambiguous),
        (302, {}, Ambiguous),
        (500, {"error": {"type": "api_error"}}, Ambiguous),
    ],
)
def test_each_answer_is_done_not_done_or_nobody_knows(
    example: ModuleType, payments: Any, status: int, body: dict[str, Any], expected: type[Exception]
) -> None:
    api, port = payments
    api.script.append((status, body))
    with pytest.raises(expected):
        provider_at(example, port).perform(a_call())


def test_nothing_is_sent_too_late_or_to_nobody_or_without_the_secret(example: ModuleType, payments: Any) -> None:
    api, port = payments
    with pytest.raises(NotSent, match="too late"):
        provider_at(example, port).perform(a_call(not_after=datetime.now(UTC)))
    unreadable = example.StripeLike(f"http://127.0.0.1:{port}", "acct_1", Path("/nothing/here").read_text)
    with pytest.raises(NotSent, match="secret"):
        unreadable.perform(a_call())
    assert api.posts.total() == 0
    with serving(Unwell) as gone:
        pass
    with pytest.raises(NotSent, match="cannot reach"):
        provider_at(example, gone).perform(a_call())


def test_another_account_is_another_provider(example: ModuleType) -> None:
    url = "https://api.payments.example"
    one, other = (example.StripeLike(url, account, str) for account in ("acct_1", "acct_2"))
    assert one.identity != other.identity


def test_a_worker_that_is_killed_during_the_charge_leaves_one_charge(
    new_pool: Callable[..., Pool], payments: Any, tmp_path: Path
) -> None:
    api, port = payments
    api.hold.clear()
    (tmp_path / "secret").write_text("s")
    variables = {
        "PAYMENTS_URL": f"http://127.0.0.1:{port}",
        "PAYMENTS_ACCOUNT": "acct_1",
        "PAYMENTS_SECRET_FILE": str(tmp_path / "secret"),
    }
    where = {"APP_DIR": str(EXAMPLE.parent), "POOL_POLL_INTERVAL": "0.1"}
    pool = new_pool(app="stripe_like:app", options=where, environment=variables).start()
    task = pool.submit("charge", {"customer": "cus_1", "amount": 500})
    wait_until(lambda: api.charges, "it is charged")
    victim = next(worker["pid"] for worker in pool.get("/workers").body["workers"] if worker["task"] == task)
    os.kill(victim, signal.SIGKILL)
    found = pool.wait_for(task, "succeeded")
    api.hold.set()
    assert (found["attempts"], len(api.charges), api.posts.total()) == (2, 1, 2)
    assert found["result"] == {"customer": "cus_1", "amount": 500, "currency": "eur", "receipt_id": "ch_1"}
    assert found["effect"]["key"] == key_for(task)
