"""The model of the protocol holds, and each of its guards is needed: Spin proves the one and shows the other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[1] / "docs" / "model" / "check"
MISSING = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECK), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


NAMES = check("--list").stdout.split()
#: Written as the switches that they are; the proofs' names are in small letters.
MUTANTS = [name for name in NAMES if name.isupper()]


def test_no_order_of_steps_breaks_an_invariant_and_every_assertion_is_reached() -> None:
    done = check("proofs")
    assert done.returncode == 0, done.stdout + done.stderr
    proved = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("proved")]
    assert proved == [name for name in NAMES if name not in MUTANTS]
    assert set(proved) >= {"none", "lookup", "dedup", "both"}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_this_guard_the_invariant_that_is_named_can_be_broken(mutant: str) -> None:
    done = check(mutant)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"refuted  {mutant} ")


def test_the_page_explains_every_mutant_and_names_what_refutes_it() -> None:
    page = (CHECK.parent / "README.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    explained = {row[0].split("`")[1]: row[1] for row in rows if row[0].split("`")[1].isupper() and len(row) == 3}
    source = CHECK.read_text()
    assert set(explained) == set(MUTANTS)
    for mutant, refuted_by in explained.items():
        line = next(line for line in source.splitlines() if f'Mutant("{mutant}"' in line)
        fails = line.rsplit('"', 2)[1].removeprefix("invariant ")
        assert refuted_by == fails, mutant
