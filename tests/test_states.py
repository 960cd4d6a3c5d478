"""The states of a task: the table in the code, the constraints of the schema and the page in docs agree, and refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from deadsure.runtime.model import Claimed, ExitProof, Outcome
from deadsure.runtime.states import TERMINAL, TRANSITIONS, State
from deadsure.runtime.store import cancel, recover
from kit.store import Store, WorkerRow
from pg8000.exceptions import DatabaseError

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "state-machine.md").read_text()
DONE = Outcome("succeeded", result='{"words": 2}')
CHECK_VIOLATION = "23514"


# --- one table of states, written three times


def test_the_schema_allows_exactly_the_states_of_the_code(store: Store) -> None:
    (row,) = store.query("select prosrc from pg_proc where oid = cast('deadsure.keeps_the_rules' as regproc)")
    (words,) = re.findall(r"state not in \(([^)]*)\) then 'state_is_known'", row["prosrc"])
    assert set(re.findall(r"'(\w+)'", words)) == set(State)


def test_the_page_lists_exactly_the_states_of_the_code() -> None:
    listed = {cells[0]: cells[1] for cells in _table("State")}
    assert listed == {state: "yes" if state in TERMINAL else "no" for state in State}


def test_the_page_lists_exactly_the_transitions_of_the_code() -> None:
    listed: dict[tuple[State | None, State], frozenset[str]] = {}
    for origin, target, who, _ in _table("From"):
        way = (None if origin == "(none)" else State(origin), State(target))
        listed[way] = listed.get(way, frozenset()) | set(re.split(r", ", who))
    assert listed == TRANSITIONS


def test_the_drawing_shows_exactly_the_transitions_of_the_code() -> None:
    drawing = re.search(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)
    assert drawing is not None
    ways = re.findall(r"^ *(\S+) --> (\w+) *:", drawing[1], re.MULTILINE)
    assert sorted(ways) == sorted({("[*]" if origin is None else str(origin), str(to)) for origin, to in TRANSITIONS})


def test_nothing_leaves_a_terminal_state() -> None:
    assert {origin for origin, _ in TRANSITIONS} == {None, *State} - TERMINAL


def _table(heading: str) -> list[list[str]]:
    """The rows of the page's table whose first heading is this, without code marks."""
    lines = PAGE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


# --- what the schema refuses, whoever writes


@pytest.mark.parametrize(
    ("state", "change", "constraint"),
    [
        ("queued", "state = 'done'", "state_is_known"),
        ("running", "result = '1'", "result_only_if_succeeded"),
        ("failed", "result = '1'", "result_only_if_succeeded"),
        ("succeeded", "result = null", "result_only_if_succeeded"),
        ("queued", "finished_at = clock_timestamp()", "finished_only_if_terminal"),
        ("succeeded", "finished_at = null", "finished_only_if_terminal"),
        ("queued", "owner = gen_random_uuid()", "owner_only_while_running"),
        ("succeeded", "owner = gen_random_uuid()", "owner_only_while_running"),
        ("running", "owner = null", "owner_only_while_running"),
        ("running", "attempts = max_attempts + 1", "attempts_within_budget"),
        ("queued", "attempts = max_attempts", "queued_has_budget_left"),
        ("failed", "failure_reason = null", "failed_has_a_reason"),
        ("queued", "unknown_cause = 'worker_died', unknown_since = now(), unknown_needs = 'decision'",
         "unknown_has_a_cause"),
        ("unknown", "unknown_cause = null, unknown_since = null, unknown_needs = null", "unknown_has_a_cause"),
        ("unknown", "unknown_since = null", "unknown_is_whole"),
        ("unknown", "unknown_needs = null", "unknown_is_whole"),
        ("succeeded", "unsettled = true", "unsettled_is_not_over"),
        ("failed", "unsettled = true", "unsettled_is_not_over"),
        ("canceled", "unsettled = true", "unsettled_is_not_over"),
        ("queued", "timeout = 0", "timeout_is_positive"),
        ("queued", "timeout = 'NaN'", "timeout_is_positive"),
        ("queued", "timeout = 'infinity'", "timeout_is_positive"),
        ("queued", "on_death = 'retry'", "on_death_is_known"),
        ("queued", "queue = ''", "queue_has_a_name"),
        ("queued", "idempotency_key = ''", "key_is_short"),
        ("unknown", "unknown_needs = 'luck'", "evidence_is_known"),
        ("succeeded", "max_attempts = 0, attempts = 0", "budget_of_at_least_one"),
    ],
)
def test_the_schema_refuses(store: Store, state: str, change: str, constraint: str) -> None:
    task = _in_state(store, state)
    assert store.row(task)["state"] == state
    before = store.row(task)
    with pytest.raises(DatabaseError) as refused:
        store.query(f"update deadsure.tasks set {change} where id = :id", id=task)
    answer: dict[str, Any] = refused.value.args[0]
    assert (answer["C"], answer["n"]) == (CHECK_VIOLATION, constraint)
    assert store.row(task) == before


def test_no_task_is_born_with_an_empty_budget(store: Store) -> None:
    with pytest.raises(DatabaseError) as refused:
        store.query(
            "insert into deadsure.tasks"
            " (id, kind, queue, priority, on_death, max_attempts, created_at, run_at, payload)"
            " values (:id, 'plain', 'default', 0, 'fail', 0, now(), now(), '{}')",
            id=uuid4(),
        )
    assert refused.value.args[0]["C"] == CHECK_VIOLATION


def test_two_tasks_cannot_have_one_idempotency_key(store: Store) -> None:
    first, second = store.submit(), store.submit()
    write = "update deadsure.tasks set idempotency_key = 'k' where id = :id"
    store.query(write, id=first)
    with pytest.raises(DatabaseError) as refused:
        store.query(write, id=second)
    assert refused.value.args[0]["n"] == "tasks_idempotency_key"


def _in_state(store: Store, state: str) -> UUID:
    """A task that has come into this state by the product's own ways."""
    if state in ("queued", "canceled"):
        task = store.submit()
        if state == "canceled":
            cancel.cancel(store.connection, task)
        return task
    worker, claimed = _claimed(store)
    match state:
        case "succeeded":
            worker.finish(claimed, DONE)
        case "failed":
            worker.finish(claimed, Outcome("failed", reason="no"))
        case "unknown":
            recover.recover_worker(store.connection, worker.slot.id, ExitProof("SIGKILL"))
    return claimed.id


def _claimed(store: Store) -> tuple[WorkerRow, Claimed]:
    store.submit()
    worker = store.worker()
    claimed = worker.claim()
    assert claimed is not None
    return worker, claimed
