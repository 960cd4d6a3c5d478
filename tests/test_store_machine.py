"""Every sequence of verbs keeps the invariants: a state machine over the store, on real PostgreSQL.

Each example is up to fifty steps: submit, claim, finish, cancel, recover, sweep, promote, look up, decide, prune, by
several workers and supervisors over several sessions, with leases that end, answers that are lost, copies that arrive
late, and transactions that stay open while others act. A model (kit/machine) says what each must answer and write.
After each step the whole database is compared with it, and judged by the invariants without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadsure.runtime import db
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.stateful import run_state_machine_as_test
from kit.machine.machine import StoreMachine
from kit.machine.stage import Arena
from kit.scale import count


@pytest.fixture
def machine(database: db.Settings, tmp_path: Path) -> Iterator[type[StoreMachine]]:
    """The machine, on a database of its own. What hypothesis keeps goes into the test's folder."""
    set_hypothesis_home_dir(tmp_path)
    arena = Arena(database)
    yield type("Machine", (StoreMachine,), {"arena": arena})
    print(", ".join(f"{number:,} {what}" for what, number in arena.counted.items()))
    arena.close()
    set_hypothesis_home_dir(None)


#: What is tried at a desk and in CI: a commit fails there by what it changed. The long run draws a new one.
SEED = 1418088794


def test_every_sequence_of_verbs_keeps_the_invariants(machine: type[StoreMachine]) -> None:
    chosen = int(os.environ.get("MACHINE_SEED") or count(long=int.from_bytes(os.urandom(4), "big"), ci=SEED))
    print(f"seed {chosen}")
    run_state_machine_as_test(
        seed(chosen)(machine),
        settings=settings(
            max_examples=count(long=2000, ci=80),
            stateful_step_count=50,
            deadline=None,
            report_multiple_bugs=False,
            database=None,
            print_blob=True,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
