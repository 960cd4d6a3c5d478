"""The table of guards, and the change that takes one out of a text."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
#: As all our statements are laid out: on one line, or down to the next line that begins with the closing bracket.
_WITH_PART = re.compile(r"^(?:with )?(\w+) as (?:materialized )?\((?:[^\n]+|\n.*?^\)),?$", re.MULTILINE | re.DOTALL)


class OutOfStep(Exception):
    """The table speaks of a text that the source does not hold exactly once."""


@dataclass(frozen=True)
class Change:
    """One replacement in one file.

    `within` names the part it is for: a SQL statement, one of its WITH parts as `statement/part`, a Python function or
    class.
    """

    file: str
    find: str
    replace: str
    within: str | None = None

    def applied_to(self, text: str) -> str:
        """The text without the guard. Raises OutOfStep unless `find` stands there exactly once."""
        start, end = self._part(text)
        found = text.count(self.find, start, end)
        if found != 1:
            where = f"{self.file}, {self.within}" if self.within else self.file
            raise OutOfStep(f"{where}: {self.find!r} stands there {found} times, not once")
        return text[:start] + text[start:end].replace(self.find, self.replace) + text[end:]

    def _part(self, text: str) -> tuple[int, int]:
        if self.within is None:
            return 0, len(text)
        parts = _statements(text) if self.file.endswith(".sql") else _definitions(text)
        found = [(start, end) for name, start, end in parts if name == self.within]
        if len(found) != 1:
            raise OutOfStep(f"{self.file} has {len(found)} parts named {self.within}, not one")
        return found[0]


@dataclass(frozen=True)
class Guard:
    """One guard: what takes it out, and the tests of which at least one must then fail.

    `error` is what such a test may also end with, as a pattern: the message of a second guard behind this one.
    """

    name: str
    invariant: int
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    error: str | None = None
    note: str = ""


def load() -> list[Guard]:
    """All guards, by file and then in their order."""
    return [_guard(entry) for file in sorted(HERE.glob("*.toml")) for entry in _entries(file)]


def names_in(file: str) -> set[str]:
    """The names of the tests in a file, by its path from the root."""
    return set(re.findall(r"^def (test_\w+)", (ROOT / file).read_text("utf-8"), re.MULTILINE))


def _statements(text: str) -> Iterator[tuple[str, int, int]]:
    """The named statements of a .sql file and their WITH parts: name, start, end."""
    starts = [(found[1], found.start()) for found in re.finditer(r"^-- name: (\w+)$", text, re.MULTILINE)]
    ends = [start for _, start in starts[1:]] + [len(text)]
    for (name, start), end in zip(starts, ends, strict=True):
        yield name, start, end
        for part in _WITH_PART.finditer(text[start:end]):
            yield f"{name}/{part[1]}", start + part.start(), start + part.end()


def _definitions(text: str) -> Iterator[tuple[str, int, int]]:
    """The functions and classes of a Python file: name, start, end."""
    offsets = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, offsets[node.lineno - 1], offsets[node.end_lineno or node.lineno]


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    yield from tomllib.loads(file.read_text("utf-8"))["guard"]


def _guard(entry: dict[str, Any]) -> Guard:
    rest = dict(entry)
    also = rest.pop("also", [])
    own = {key: rest.pop(key) for key in ("file", "within", "find", "replace") if key in rest}
    changes = tuple(Change(**change) for change in [own, *also])
    return Guard(changes=changes, tests=tuple(rest.pop("tests")), **rest)
