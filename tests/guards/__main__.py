"""Take out every guard, one by one, and show the test that fails without it.

    python -m guards [--jobs N] [--part K/N] [--no-control] [WORD ...]

WORDs choose the guards whose name or file holds them all. Exit code 1: a guard can be taken out unnoticed, or a test
fails although nothing was taken out.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kit import postgres

from .table import Guard, load
from .trial import Copy, Trial, Verdict, judge


def main() -> int:
    asked = _arguments()
    guards = [guard for guard in load() if _chosen(guard, asked.words)]
    part, parts = (int(number) for number in asked.part.split("/"))
    guards = guards[part - 1 :: parts]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="deadsure-guards-") as folder, postgres.session_server() as server:
        os.environ.update([postgres.shared(server)])
        copies = [Copy(Path(folder) / str(number)) for number in range(asked.jobs)]
        well = asked.no_control or _all_pass(guards, copies)
        unnoticed = sum(not _show(guard, verdict) for guard, verdict in _try(guards, copies)) if well else 0
    print(f"{len(guards)} guards, {unnoticed} can be taken out unnoticed; {time.monotonic() - began:.0f} s")
    return 0 if well and not unnoticed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m guards", description="Take out every guard, one by one.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only guards with this in their name or file")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time (2)")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth guard, from the Kth on")
    parser.add_argument("--no-control", action="store_true", help="do not run the tests with all guards in place first")
    return parser.parse_args()


def _chosen(guard: Guard, words: Sequence[str]) -> bool:
    about = f"{guard.name} {' '.join(change.file for change in guard.changes)}"
    return all(word in about for word in words)


def _all_pass(guards: Sequence[Guard], copies: Sequence[Copy]) -> bool:
    """Whether the named tests pass while nothing is missing."""
    tests = sorted({test for guard in guards for test in guard.tests})
    shares = [share for number in range(len(copies)) if (share := tests[number :: len(copies)])]
    trials = [Trial(copy, share) for copy, share in zip(copies, shares, strict=False)]
    well = True
    for trial in _ended(trials, lambda: None):
        code, notes = trial.end()
        for note in notes:
            print(f"fails although nothing is missing: {note.test}: {note.text}")
        if code != 0:
            print(trial.log.read_text(errors="replace"))
        well = well and code == 0
    return well


def _try(guards: Sequence[Guard], copies: Sequence[Copy]) -> Iterator[tuple[Guard, Verdict]]:
    """Every guard's verdict, in the order in which they come."""
    waiting, free = list(reversed(guards)), list(copies)

    def start() -> Trial | None:
        if not waiting or not free:
            return None
        guard, copy = waiting.pop(), free.pop()
        copy.take_out(guard)
        return Trial(copy, guard.tests, guard)

    first = [trial for _ in copies if (trial := start()) is not None]
    for trial in _ended(first, start):
        code, notes = trial.end()
        trial.copy.put_back()
        free.append(trial.copy)
        assert trial.guard is not None
        yield trial.guard, judge(trial.guard, code, notes)


def _ended(running: list[Trial], start: Callable[[], Trial | None]) -> Iterator[Trial]:
    """Each trial when it has ended; one that takes too long is interrupted. Whenever one has ended, `start` may add."""
    interrupted: set[Trial] = set()
    try:
        while running:
            patience = max(0.0, min(trial.until for trial in running) - time.monotonic())
            ready, _, _ = select.select([trial.pidfd for trial in running], [], [], patience)
            for trial in list(running):
                if trial.pidfd in ready:
                    running.remove(trial)
                    yield trial
                    running += [new for new in [start()] if new is not None]
                elif time.monotonic() >= trial.until:
                    trial.interrupt(hard=trial in interrupted)
                    interrupted.add(trial)
    finally:  # Ctrl-C reaches the children, too: let them clean up behind them
        for trial in running:
            trial.end()


def _show(guard: Guard, verdict: Verdict) -> bool:
    """Print a guard's lines: its invariant, its name, the test that failed and with what. Whether it was noticed."""
    noticed = verdict.noticed
    print(f"{'NO' if noticed is None else 'ok'}  {guard.invariant:>2}  {guard.name}")
    if guard.note:
        print(f"        ({guard.note})")
    if noticed is None:
        print(f"        {verdict.problem}", flush=True)
    else:
        print(f"        {noticed.test.rpartition('::')[2]}: {noticed.text[:100]}", flush=True)
    return noticed is not None


if __name__ == "__main__":
    sys.exit(main())
