"""Guards are taken out of a copy of the tree, one by one, and a test must fail: some here, all of them in the long run.

The choice follows from the sources and the tests: it is the same for one tree, and another after every change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from guards.table import ROOT, load
from kit import postgres
from kit.pool import SOURCE
from kit.scale import count

pytestmark = pytest.mark.faults
PARTS = count(long=1, ci=6)


def test_a_test_fails_without_each_of_them(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}:{ROOT / 'tests'}")
    monkeypatch.setenv(*postgres.shared(server))
    # The rest of the suite shows that the tests pass while nothing is missing.
    part = ["--part", f"{_turn() + 1}/{PARTS}", "--no-control"]
    ran = subprocess.run(
        [sys.executable, "-m", "guards", *part], env=os.environ, capture_output=True, text=True, check=False
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _turn() -> int:
    named = {change.file for guard in load() for change in guard.changes}
    named |= {test.partition("::")[0] for guard in load() for test in guard.tests}
    texts = b"".join((ROOT / name).read_bytes() for name in sorted(named))
    return int.from_bytes(hashlib.sha256(texts).digest()[:8], "big") % PARTS
