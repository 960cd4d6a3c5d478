"""A fault proxy before the test's database."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from deadsure.runtime import db
from kit.fault_proxy import FaultProxy


@pytest.fixture
def proxy(database: db.Settings) -> Iterator[FaultProxy]:
    """Passes everything on until it is told otherwise. Its seed is printed."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    made = FaultProxy(database.dsn.hosts[0], seed=seed)
    yield made
    made.close()
