"""The table of guards (tests/guards) is in step with sources and tests, and its judgement is strict.

That a test fails without each of them is shown by `make guards`, and in part by tests/faults/test_every_guard.py.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from guards.table import ROOT, Change, Guard, OutOfStep, load, names_in
from guards.trial import Note, judge

GUARDS = load()
#: Statements that change a task, a slot or an incarnation and hold no guard: the first half of a recovery, whose proof
#: is an argument; the removal of what a drill left; and that of incarnations, where a foreign key keeps those in use.
BESIDE = {"end_slots", "drill_remove", "prune_incarnations"}
A_CHANGE = Change("a.sql", "and fence", "")
A_GUARD = Guard(
    "finish: fence", 2, (Change("a.sql", "and fence", ""),), ("tests/test_a.py::test_it",), error="^Refused"
)


# --- the table


def test_every_text_stands_in_its_source_exactly_once() -> None:
    problems = []
    for guard in GUARDS:
        texts: dict[str, str] = {}
        for change in guard.changes:
            text = texts.get(change.file) or (ROOT / change.file).read_text("utf-8")
            try:
                texts[change.file] = change.applied_to(text)
            except OutOfStep as error:
                problems.append(f"{guard.name}: {error}")
    assert problems == []


def test_every_test_that_is_named_exists() -> None:
    named = {tuple(re.split(r"::|\[", test)[:2]) for guard in GUARDS for test in guard.tests}
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []


def test_every_guard_has_a_name_of_its_own_and_every_invariant_has_guards() -> None:
    assert [name for name, times in Counter(guard.name for guard in GUARDS).items() if times > 1] == []
    assert {guard.invariant for guard in GUARDS} == set(range(1, 14))


def test_every_statement_that_changes_what_is_true_is_guarded() -> None:
    writes = re.compile(r"(update|delete from) deadsure\.(tasks|slots|incarnations)\b")
    found = set()
    for file in ROOT.glob("runtime/sql/*.sql"):
        parts = re.split(r"^-- name: (\w+)$", file.read_text("utf-8"), flags=re.MULTILINE)
        found |= {name for name, text in zip(parts[1::2], parts[2::2], strict=True) if writes.search(text)}
    guarded = {str(change.within).partition("/")[0] for guard in GUARDS for change in guard.changes}
    assert found - guarded == BESIDE


# --- the judgement


def test_a_text_that_is_not_there_or_there_twice_is_out_of_step() -> None:
    text = "-- name: one\nwith a as (\n  x and y\n)\nselect x;\n\n-- name: two\nselect x and y;\n"
    assert Change("a.sql", " and y", "", "two").applied_to(text) == text[: -len(" and y;\n")] + ";\n"
    assert Change("a.sql", "x", "z", "one/a").applied_to(text) == text.replace("x", "z", 1)
    for change in (Change("a.sql", " and y", ""), Change("a.sql", "x", "", "one"), Change("a.sql", "x", "", "three")):
        with pytest.raises(OutOfStep):
            change.applied_to(text)


@pytest.mark.parametrize(
    ("code", "notes"),
    [
        (0, []),
        (2, []),
        (4, []),
        (-9, []),
        (1, [Note("t", "setup", True, "AssertionError: no server")]),
        (1, [Note("t", "call", False, "StatementRefused: syntax error at or near")]),
        (70, [Note("t", "call", True, "AssertionError: assert 1 == 2")]),
    ],
)
def test_nothing_but_a_failed_test_is_a_notice(code: int, notes: list[Note]) -> None:
    assert judge(A_GUARD, code, notes).noticed is None


@pytest.mark.parametrize(
    "note", [Note("t", "call", True, "AssertionError: assert 1 == 2"), Note("t", "call", False, "Refused: by a check")]
)
def test_a_demand_of_the_test_or_the_guard_behind_is_a_notice(note: Note) -> None:
    assert judge(A_GUARD, 1, [note]).noticed == note
