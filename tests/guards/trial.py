"""One trial: a copy of the tree without one guard, and what the named tests say about it.

pytest runs in a forked child, so that neither Python nor the packages that do not change are loaded anew each time:
a trial takes half a second. All trials share one PostgreSQL, with a database of its own for each test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec  # noqa: F401  loaded once, for all the children
import pg8000.native  # noqa: F401
import pytest
import rfc8785  # noqa: F401

from .table import ROOT, Change, Guard

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "*.egg-info", "build", "dist")
#: The packages that a trial must load from its own copy.
OURS = ("deadsure", "kit", "guards")
#: Seconds for one trial, and for all tests with all guards in place.
PATIENCE = 120.0
PATIENCE_WITH_ALL = 900.0
OPTIONS = ["-q", "--tb=line", "-p", "no:cacheprovider", "--disable-plugin-autoload"]


@dataclass(frozen=True)
class Note:
    """A test that did not pass: in which phase, and with what. `asserted`: by what the test itself demands."""

    test: str
    phase: str
    asserted: bool
    text: str


@dataclass(frozen=True)
class Verdict:
    """What became of a trial. `noticed`: by which test, and how it said so; else `problem`."""

    noticed: Note | None
    problem: str = ""


class Copy:
    """A copy of the tree in `folder`, in which one guard at a time is taken out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before: dict[Path, tuple[str, float]] = {}
        self._written = 0
        shutil.copytree(ROOT, folder, symlinks=True, ignore=LEFT_OUT)

    def take_out(self, guard: Guard) -> None:
        """Apply the guard's changes. Raises OutOfStep, and SyntaxError for what is no Python any more."""
        for change in guard.changes:
            path = self.folder / change.file
            text = path.read_text("utf-8")
            self._before.setdefault(path, (text, path.stat().st_mtime))
            self._write(path, change.applied_to(text))

    def put_back(self) -> None:
        for path, (text, modified) in self._before.items():
            path.write_text(text, "utf-8")
            os.utime(path, (modified, modified))
        self._before.clear()

    def _write(self, path: Path, text: str) -> None:
        if path.suffix == ".py":
            compile(text, str(path), "exec")
        path.write_text(text, "utf-8")
        self._written += 1
        another = self._before[path][1] + self._written  # or a file compiled from another text in the same second does
        os.utime(path, (another, another))


class Trial:
    """pytest in a child, on a copy. `pidfd` is readable when it has ended."""

    def __init__(self, copy: Copy, tests: Sequence[str], guard: Guard | None = None) -> None:
        self.copy = copy
        self.guard = guard
        self.until = time.monotonic() + (PATIENCE if guard is not None else PATIENCE_WITH_ALL)
        self.notes_file = copy.folder.with_name(f"{copy.folder.name}.notes")
        self.log = copy.folder.with_name(f"{copy.folder.name}.log")
        self.notes_file.write_text("")
        self._pid = os.fork()
        if self._pid == 0:
            _be_pytest(self, tests)
        self.pidfd = os.pidfd_open(self._pid)

    def interrupt(self, *, hard: bool) -> None:
        """End it: as Ctrl-C does, so that the tests clean up behind them, or at once."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL if hard else signal.SIGINT)
        self.until = time.monotonic() + 15

    def end(self) -> tuple[int, list[Note]]:
        """Collect it: pytest's exit code (negative: the signal) and what did not pass."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self.pidfd)
        notes = [Note(**json.loads(line)) for line in self.notes_file.read_text("utf-8").splitlines()]
        return os.waitstatus_to_exitcode(status), notes


def judge(guard: Guard, code: int, notes: Sequence[Note]) -> Verdict:
    """Whether a test noticed. A broken statement, a fixture that fails or a crash of pytest is no notice."""
    if code not in (0, 1):
        return Verdict(None, f"pytest ended with {code}" + "".join(f"; {note.test}: {note.text}" for note in notes))
    for note in notes:
        expected = guard.error is not None and re.search(guard.error, note.text)
        if note.phase == "call" and (note.asserted or expected):
            return Verdict(note)
    if notes:
        return Verdict(None, "; ".join(f"{note.test} ended in its {note.phase} with {note.text}" for note in notes))
    return Verdict(None, "no test fails without it")


class Recorder:
    """The plugin in the child: notes what does not pass, and has the server read each statement that was changed."""

    def __init__(self, copy: Path, notes: Path, changes: Sequence[Change]) -> None:
        self._copy = copy
        self._notes = notes
        sql = [change.within for change in changes if change.file.endswith(".sql") and change.within]
        self._statements = {part.partition("/")[0] for part in sql}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if call.excinfo is not None and report.failed:
            asserted = issubclass(call.excinfo.type, AssertionError | pytest.fail.Exception)
            text = f"{call.excinfo.typename}: {call.excinfo.value}"
            note = Note(item.nodeid, str(report.when), asserted, text.strip().splitlines()[0][:300])
            with self._notes.open("a") as file:
                file.write(json.dumps(vars(note)) + "\n")
        return report  # type: ignore[no-any-return]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        made: Any = yield
        if fixturedef.argname == "database":
            self._have_it_read(made)
        return made  # type: ignore[no-any-return]

    def _have_it_read(self, settings: Any) -> None:
        """Without a guard a statement must still be one: else a test fails for a reason that proves nothing."""
        import deadsure
        from deadsure.runtime import db, sql

        assert Path(deadsure.__path__[0]).resolve() == self._copy.resolve(), "the tests use another tree"
        connection = db.connect(settings, "guards")
        for name in self._statements:
            connection._driver.prepare(sql.statement(name).text)
        connection.close()


def _be_pytest(trial: Trial, tests: Sequence[str]) -> NoReturn:
    """The child's whole life."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(trial.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(trial.copy.folder)
        for variable in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            os.environ.pop(variable, None)
        sys.dont_write_bytecode = False  # the copy keeps what was compiled for the next trial
        sys.path[:] = [path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT / "tests")]
        sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT / ".ci" / "path"]
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        changes = trial.guard.changes if trial.guard is not None else ()
        recorder = Recorder(trial.copy.folder, trial.notes_file, changes)
        stop = ["-x"] if trial.guard is not None else []
        folder = f"--basetemp={trial.copy.folder}.tmp"
        code = int(pytest.main([*OPTIONS, folder, *stop, *tests], plugins=[recorder]))
    except BaseException:  # noqa: BLE001  the child's outermost guard: said, then its exit code tells
        traceback.print_exc()
    finally:
        os._exit(code)
