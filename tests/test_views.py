"""The views that people's own queries rely on."""

from __future__ import annotations

from deadsure.runtime.model import ExitProof
from deadsure.runtime.store import recover
from kit.store import Store


def test_tasks_view_shows_every_task(store: Store) -> None:
    task = store.submit("plain", '{"a": 1}')
    (row,) = store.query("select * from deadsure.tasks_view")
    assert (row["id"], row["state"], row["payload"]) == (task, "queued", {"a": 1})


def test_unknown_view_shows_what_nobody_can_say_and_what_would_settle_it(store: Store) -> None:
    store.submit("failing")
    task = store.submit("plain")
    for _ in range(2):
        worker = store.worker()
        assert worker.claim() is not None
        recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL", phase="handling"))
    (row,) = store.query("select * from deadsure.unknown_view")
    assert (row["id"], row["cause"], row["needs"], row["signal"]) == (task, "worker_died", "decision", "SIGKILL")
