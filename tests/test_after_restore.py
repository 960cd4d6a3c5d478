"""deploy/postgres/after_restore.sql: what a restored backup has forgotten is not done again on a guess."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pg8000.native
import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from deadsure.runtime.store import recover
from kit import postgres
from kit.bank import FULL, LOOKUP_ONLY, Bank, new_bank
from kit.pool import ROOT, dsn_text
from kit.store import Store

SCRIPT = ROOT / "deploy" / "postgres" / "after_restore.sql"
AGO = "select cast(clock_timestamp() - interval '{}' as text)"


@contextmanager
def restored(server: EmbeddedPostgres, store: Store) -> Iterator[Store]:
    """Another database, as this one is now, whose leases are over."""
    store.close()
    address = dsn_text(store.settings)
    copy = f"{postgres.database_name(address)}_copy"
    with postgres.admin(server) as admin:
        admin.run(f"create database {copy} template {postgres.database_name(address)} strategy file_copy")
    target = postgres.with_database(address, copy)
    try:
        found = Store(db.Settings(dsn.parse(target), statement_timeout=10.0))
        found.query("update deadsure.incarnations set lease_until = clock_timestamp() where incarnation <> :mine",
                    mine=found.incarnation)  # fmt: skip
        yield found
        found.close()
    finally:
        postgres.drop_database(server, target)


def make_safe(store: Store, **settings: str) -> None:
    """Run the file as an administrator does, between two pools: nobody's lease is valid meanwhile."""
    driver = store.connection._driver
    ((moment,),) = driver.run(AGO.format("10 minutes")) or ()
    driver.run("update deadsure.incarnations set lease_until = lease_until - interval '1 day'")
    for name, value in {"restored_to": moment, **settings}.items():
        driver.run(f"set deadsure.{name} = '{value}'")
    driver.run(SCRIPT.read_text())
    driver.run("update deadsure.incarnations set lease_until = lease_until + interval '1 day'"
               " where incarnation = :mine", mine=str(store.incarnation))  # fmt: skip


def on(store: Store, bank: Bank) -> Bank:
    """The same application and provider, on another database."""
    return Bank(store, bank.ledger, bank.app)


def test_what_was_done_after_the_backup_is_found_and_not_done_again_and_the_rest_is_done_once(
    store: Store, server: EmbeddedPostgres
) -> None:
    bank = new_bank(store)
    done, open_ = bank.submit(), bank.submit()
    original = store.settings
    with restored(server, store) as copy:
        went_on = Store(original)
        assert on(went_on, bank).run() == "succeeded"  # after the backup, on the database that is lost then
        went_on.close()
        make_safe(copy)
        after = on(copy, bank)
        rows = [after.row(task) for task in (done, open_)]
        assert [(row["state"], row["unknown_needs"], row["fence"]) for row in rows] == [("unknown", "lookup", 1000)] * 2
        assert sorted((after.reconcile(), after.reconcile())) == ["mismatch", "queued"]
        assert after.run() == "succeeded"
        assert after.row(done)["unknown_needs"] == "decision"
        assert after.row(open_)["state"] == "succeeded"
        assert dict(bank.ledger.calls) == {f"deadsure-{task}": 1 for task in (done, open_)}
        events = copy.query("select event from deadsure.events where task_id = :id order by number", id=done)
        assert [row["event"] for row in events] == ["restored", "receipt_mismatch"]


def test_after_its_keys_may_have_been_forgotten_an_absence_proves_nothing(
    store: Store, server: EmbeddedPostgres
) -> None:
    bank = new_bank(store, FULL)  # it remembers a key for an hour
    task = bank.submit()
    with restored(server, store) as copy:
        ((moment,),) = copy.connection._driver.run(AGO.format("2 hours")) or ()
        make_safe(copy, restored_to=moment)
        assert on(copy, bank).reconcile() == "retention_passed"
        assert copy.row(task)["unknown_needs"] == "decision"


def test_a_lookup_alone_is_enough_since_nobody_is_left_who_could_send(store: Store, server: EmbeddedPostgres) -> None:
    bank = new_bank(store, LOOKUP_ONLY)
    bank.submit()
    with restored(server, store) as copy:
        make_safe(copy)
        assert on(copy, bank).reconcile() == "queued"


def test_kinds_that_may_run_twice_wait_as_before_and_so_does_what_is_due_later(
    store: Store, server: EmbeddedPostgres
) -> None:
    harmless, plain, failing = (store.submit(kind) for kind in ("harmless", "plain", "failing"))
    later = store.submit("plain")
    store.query("update deadsure.tasks set run_at = clock_timestamp() + interval '1 day' where id = :id", id=later)
    running = store.submit("plain")
    worker = store.worker()
    store.query("delete from deadsure.ready where id <> :id", id=running)
    assert worker.claim() is not None
    worker.connection.close()
    with restored(server, store) as copy:
        make_safe(copy, rerun="failing,other")
        states = {task: copy.row(task)["state"] for task in (harmless, plain, failing, later, running)}
        assert states == {harmless: "queued", plain: "unknown", failing: "queued", later: "queued", running: "running"}
        assert copy.row(plain)["unknown_needs"] == "decision"
        # What was running is settled by the first pool, as that of a lost host.
        copy.query("update deadsure.incarnations set lease_until = 'epoch' where incarnation <> :mine",
                   mine=copy.incarnation)  # fmt: skip
        recover.sweep(copy.connection, copy.incarnation)
        assert copy.row(running)["state"] == "unknown"


def test_it_refuses_beside_a_living_pool_and_without_the_moment(store: Store) -> None:
    driver = store.connection._driver
    for setting, said in (("''", "say to which moment"), ("'2099-01-01'", "in the future"), ("'2026-01-01'", "lease")):
        driver.run(f"set deadsure.restored_to = {setting}")
        with pytest.raises(pg8000.exceptions.DatabaseError, match=said):
            driver.run(SCRIPT.read_text())
        driver.run("rollback")
