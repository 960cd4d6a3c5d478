"""`deadsure bench`: every figure stands beside its floor, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from deadsure.bench import floor, site
from deadsure.bench.site import Site
from deadsure.runtime import db
from kit.pool import SOURCE, dsn_text

LEFT = """
select (select count(*) from deadsure.tasks) + (select count(*) from deadsure.ready)
     + (select count(*) from deadsure.kinds) + (select count(*) from deadsure.slots)
     + (select count(*) from deadsure.incarnations)
"""


@pytest.fixture
def place(database: db.Settings) -> Iterator[Site]:
    with site.made(database, {**os.environ, "PYTHONPATH": str(SOURCE)}, lambda _: None) as made:
        yield made


def left(database: db.Settings) -> int:
    connection = db.connect(database, "test")
    try:
        return int(connection._driver.run(LEFT)[0][0])
    finally:
        connection.close()


def test_a_bare_loop_measures_the_floor_where_pgbench_is_not_installed(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    measured_by, rate = floor.single(place, 2, 100)
    assert measured_by == "a bare driver loop"
    assert rate > 0


def test_one_run_measures_everything_and_leaves_nothing(database: db.Settings) -> None:
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), "DEADSURE_DATABASE_DSN": dsn_text(database)}
    words = ["--tasks", "500", "--kills", "2", "--pickups", "20", "--rounds", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "deadsure", "bench", *words],
        env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"floor", "results", "ratios"}
    assert {
        "drain_single_vs_floor",
        "drain_batch_vs_single",
        "http_submit_32_vs_no_database",
        "bulk_submit_vs_floor",
    } <= set(found["ratios"])
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert all(found["results"][name]["p50"] > 0 for name in ("pickup_ms", "recovery_ms"))
    assert left(database) == 0
