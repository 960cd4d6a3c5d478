"""The sandbox ledger: a real process with a real book, in every mode it can be in."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from deadsure.drills import book
from deadsure.drills.ledger_process import LedgerProcess
from deadsure.drills.modes import MODES, contract_of
from deadsure.runtime.effects import Ambiguous, Call, Contract, Intent, Receipt, Rejected, Unavailable
from deadsure.runtime.http_provider import HttpProvider, Mismatched
from kit.command import environment
from kit.pool import alive
from kit.up import Up
from kit.wait import wait_until

INTENT = Intent(account="a", amount=5)


def call(key: str = "k-1", intent: Intent = INTENT, fence: int = 1, late: float = -60.0) -> Call:
    """One call; `late` is how many seconds ago its time was over."""
    not_after = datetime.now(UTC) - timedelta(seconds=late)
    return Call("1", "pay", 1, fence, key, intent, intent.fingerprint, intent.canonical, not_after, 5.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Callable[..., LedgerProcess]]:
    with ExitStack() as running:

        def start(mode: str = "contract", **options: Any) -> LedgerProcess:
            made = LedgerProcess(tmp_path / "book", mode, options=options, env=environment())
            return running.enter_context(made)

        yield start


def bank(ledger: LedgerProcess, timeout: float = 5.0) -> HttpProvider:
    return HttpProvider(f"{ledger.url}/transfers", name="bank", timeout=timeout)


def counts(ledger: LedgerProcess, key: str = "k-1") -> tuple[int, int]:
    """Requests that arrived, and effects."""
    return ledger.history.posts[key], ledger.history.effects[key]


def test_the_first_request_moves_the_money_and_the_receipt_proves_it(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger()
    receipt = bank(bench).perform(call())
    assert (receipt.key, receipt.fingerprint, receipt.fields) == ("k-1", INTENT.fingerprint, dict(INTENT))
    assert bank(bench).lookup(call()) == receipt
    assert bank(bench).lookup(call("k-2")) is None
    assert counts(bench) == (1, 1)
    assert (bench.history.lookups("k-1"), bench.history.lookups("k-2")) == (["found"], ["absent"])


def test_with_a_contract_a_repeat_is_answered_with_the_first_receipt(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger()
    assert bank(bench).perform(call()) == bank(bench).perform(call(fence=2))
    assert counts(bench) == (2, 1)


def test_a_key_is_done_once_by_many_callers_at_once(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger()
    receipts: list[Receipt] = []
    callers = [threading.Thread(target=lambda: receipts.append(bank(bench).perform(call()))) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len({receipt.receipt_id for receipt in receipts}) == 1
    assert (len(receipts), counts(bench)) == (20, (20, 1))


def test_a_key_that_was_used_for_something_else_is_refused(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger()
    bank(bench).perform(call())
    with pytest.raises(Rejected, match="422"):
        bank(bench).perform(call(intent=Intent(account="b", amount=5)))
    assert counts(bench) == (2, 1)


@pytest.mark.parametrize(("mode", "effects"), [("none", 2), ("lookup-only", 2), ("dedup-only", 1)])
def test_what_a_mode_does_to_a_repeat(ledger: Callable[..., LedgerProcess], mode: str, effects: int) -> None:
    bench = ledger(mode)
    bank(bench).perform(call())
    bank(bench).perform(call())
    assert counts(bench) == (2, effects)


@pytest.mark.parametrize("mode", ["none", "dedup-only"])
def test_without_a_lookup_a_404_is_never_authoritative(ledger: Callable[..., LedgerProcess], mode: str) -> None:
    bench = ledger(mode)
    for key in ("k-1", "k-2"):
        with pytest.raises(Unavailable, match="404"):
            bank(bench).lookup(call(key))


def test_a_ledger_that_forgets_does_it_again_and_denies_the_first(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger("forgets", retention="0.3")
    first = bank(bench).perform(call())
    wait_until(lambda: bank(bench).lookup(call()) is None, "the key is forgotten")
    assert bank(bench).perform(call()).receipt_id != first.receipt_id
    assert counts(bench) == (2, 2)


def test_a_lying_ledger_shows_another_intents_fingerprint(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger("wrong-fingerprint")
    with pytest.raises(Mismatched, match="another intent"):
        bank(bench).perform(call())
    found = bank(bench).lookup(call())
    assert found is not None
    assert found.fingerprint != INTENT.fingerprint
    assert counts(bench) == (1, 1)


def test_a_slow_ledger_has_done_it_before_the_caller_gives_up(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger("slow", delay="20")
    with pytest.raises(Ambiguous):
        bank(bench, timeout=3.0).perform(call())
    wait_until(lambda: counts(bench) == (1, 1), "it has booked, although nobody waits any more")


def test_a_flaky_ledger_breaks_in_every_way_and_still_does_it_once(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger("flaky")
    for _ in range(4):
        with pytest.raises(Ambiguous):
            bank(bench, timeout=2.0).perform(call())
    assert bank(bench).perform(call()).key == "k-1"
    assert counts(bench) == (5, 1)
    for _ in range(4):
        with pytest.raises(Unavailable):
            bank(bench, timeout=0.5).lookup(call())
    assert bank(bench).lookup(call()) is not None


def test_faults_at_random_break_what_they_are_told_to_break(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger("contract", faults="1", seed="7")
    for number in range(4):
        with pytest.raises(Ambiguous):
            bank(bench, timeout=0.5).perform(call(f"k-{number}"))
        with pytest.raises(Unavailable):
            bank(bench, timeout=0.5).lookup(call(f"k-{number}"))
    assert max(bench.history.effects.values()) == 1
    bench.kill()
    bench.start(options={})
    assert bank(bench).perform(call()).key == "k-1"
    assert bench.history.effects["k-1"] == 1


def test_an_old_fence_and_a_late_request_are_refused(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger()
    with pytest.raises(Rejected, match="412"):
        bank(bench).perform(call(fence=5, late=0.5))
    with pytest.raises(Rejected, match="412"):
        bank(bench).perform(call(fence=4))
    assert counts(bench) == (2, 0)


def test_what_was_done_is_shown_to_an_old_fence_too(ledger: Callable[..., LedgerProcess]) -> None:
    """A failover that loses claims makes the fences begin anew: a refusal would be taken for `not done`."""
    bench = ledger()
    done = bank(bench).perform(call(fence=5))
    assert bank(bench).perform(call(fence=4)) == done
    assert bank(bench).perform(call(fence=4, late=0.5)) == done
    assert counts(bench) == (3, 1)


def test_a_killed_ledger_goes_on_with_its_book(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger()
    receipt = bank(bench).perform(call(fence=2))
    with pytest.raises(Rejected):
        bank(bench).perform(call("k-2", fence=2, late=0.5))
    bench.kill()
    assert bench.pid is None
    with bench.file.open("ab") as torn:
        torn.write(b'{"event": "eff')
    assert counts(bench) == (1, 1)
    bench.start()
    assert bank(bench).perform(call(fence=3)) == receipt
    with pytest.raises(Rejected):
        bank(bench).perform(call("k-2", fence=1))
    assert (counts(bench), counts(bench, "k-2")) == ((2, 1), (2, 0))


@pytest.mark.parametrize(
    ("key", "body"), [(None, INTENT.canonical), ("k", b""), ("k", b"no JSON"), ("k", b"[]"), ("k", b'{"a": 0.5}')]
)
def test_a_request_that_cannot_be_meant_moves_nothing(
    ledger: Callable[..., LedgerProcess], key: str | None, body: bytes
) -> None:
    bench = ledger()
    with pytest.raises(Rejected, match=r"400|422"):
        bank(bench).perform(
            Call("1", "pay", 1, 1, key or "", INTENT, INTENT.fingerprint, body, datetime.now(UTC) + timedelta(1), 5.0)
        )
    assert sum(bench.history.effects.values()) == 0


def test_it_lists_the_last_transfers_for_people(ledger: Callable[..., LedgerProcess]) -> None:
    bench = ledger()
    for number in range(3):
        bank(bench).perform(call(f"k-{number}"))
    with urlopen(bench.url, timeout=5) as page:
        assert [transfer["key"] for transfer in json.load(page)["transfers"]] == ["k-2", "k-1", "k-0"]


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from deadsure.drills.ledger_process import LedgerProcess
with LedgerProcess(Path({str(tmp_path / "book")!r})) as ledger:
    print(ledger.pid, flush=True)
    time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    wait_until((tmp_path / "book").exists, "the ledger serves")
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(10)
    owner.stdout.close()
    wait_until(lambda: not alive(pid), "the ledger is gone")


# --- beside `deadsure up`


def ledger_of(up: Up) -> str:
    """Where its ledger is, as it said."""
    found = re.search(r"the demo's ledger is (http://127\.0\.0\.1:\d+), its book (\S+)", up.log)
    assert found is not None, up.log
    return found[1]


def test_up_brings_a_ledger_and_the_demo_transfers_through_it() -> None:
    with Up() as up, Up() as second:
        up.start().ready()
        second.start().ready()  # the port by convention is taken, whoever has it
        assert ledger_of(up) != ledger_of(second)
        for here in (up, second):
            for kind in ("ledger.transfer", "ledger.transfer_blind"):
                task = here.submit(kind, {"account": "ada", "amount": 5})
                here.wait_for(task, "succeeded")
                with urlopen(ledger_of(here), timeout=5) as page:
                    newest = json.load(page)["transfers"][0]
                assert (newest["key"], newest["fields"]) == (f"deadsure-{task}", {"account": "ada", "amount": 5})
        up.signal(signal.SIGTERM)
        assert up.ended() == 0  # and nothing is left, the ledger neither


def test_up_uses_the_ledger_that_is_named(ledger: Callable[..., LedgerProcess]) -> None:
    mine = ledger()
    with Up({"DEADSURE_LEDGER_URL": mine.url}) as up:
        up.start().ready()
        task = up.submit("ledger.transfer", {"account": "ada", "amount": 5})
        up.wait_for(task, "succeeded")
        assert counts(mine, f"deadsure-{task}") == (1, 1)
        assert "the demo's ledger" not in up.log
        assert "warning" not in up.log


def test_a_taken_port_is_said_and_nothing_is_started(ledger: Callable[..., LedgerProcess], tmp_path: Path) -> None:
    taken = int(ledger().url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        LedgerProcess(tmp_path / "other", port=taken)


def test_the_contracts_promise_what_the_modes_do() -> None:
    promised = {mode: contract_of(mode) for mode in MODES}
    assert promised["none"] is None
    day = 86400.0
    assert promised["contract"] == Contract(lookup=True, dedups_by_key=True, key_retention=day, settle_after=0.5)
    assert promised["lookup-only"] == Contract(lookup=True, dedups_by_key=False, key_retention=day, settle_after=0.5)
    assert promised["dedup-only"] == Contract(lookup=False, dedups_by_key=True, key_retention=day, settle_after=0.5)
    assert promised["forgets"] == Contract(lookup=True, dedups_by_key=True, key_retention=2.0, settle_after=0.5)


def test_a_book_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert book.read(tmp_path / "none").events == ()
