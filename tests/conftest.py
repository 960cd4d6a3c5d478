"""Fixtures: one real PostgreSQL per pytest process, one migrated database per test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime import db, dsn
from kit import postgres
from kit.api import Api, fresh_store
from kit.api import running as api_running
from kit.pool import Pool, new_runtime_dir
from kit.store import Store


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL."""
    with postgres.session_server() as running:
        yield running


@pytest.fixture
def database(server: EmbeddedPostgres) -> Iterator[db.Settings]:
    """Where a fresh database with the product's schema is."""
    with postgres.database(server, template=postgres.migrated_template(server)) as address:
        yield db.Settings(dsn.parse(address), statement_timeout=10.0)


@pytest.fixture
def store(database: db.Settings) -> Iterator[Store]:
    """A database with one incarnation and the kit's kinds, and a way to open workers on it."""
    opened = Store(database)
    yield opened
    opened.close()


@pytest.fixture
def new_pool(database: db.Settings) -> Iterator[Callable[..., Pool]]:
    """Makes pools on the test's database; whatever they leave running dies at the end, by pid."""
    made: list[Pool] = []

    def make(**settings: Any) -> Pool:
        made.append(Pool(database, settings.pop("runtime_dir", None) or new_runtime_dir(), **settings))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
        shutil.rmtree(pool.runtime_dir, ignore_errors=True)


@pytest.fixture
def new_api(store: Store, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """Makes api children with these settings on the test's database, in which the kit's kinds are registered."""
    with ExitStack() as running:

        def make(database: db.Settings | str = store.settings, **settings: Any) -> Api:
            return running.enter_context(api_running(database, tmp_path, **settings))

        yield make


@pytest.fixture
def api(new_api: Callable[..., Api]) -> Api:
    """One api child with the default settings, and a pool that has been ready."""
    return new_api()


@pytest.fixture(scope="module")
def shared_api(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One api child for those tests of a file that nobody's other tasks can disturb: to start one takes a second."""
    with fresh_store(server) as store, api_running(store.settings, tmp_path_factory.mktemp("api")) as api:
        yield api


#: Files in which Python has no part: proofs of a model, what the schema and its statements do, rules and dashboards,
#: whether the pages are true, what the measurement prints.
ONCE = (
    "test_bench", "test_dashboard", "test_docs", "test_docs_configuration", "test_docs_effects", "test_docs_http",
    "test_docs_operations", "test_guards", "test_model", "test_plans", "test_prometheus", "test_roles", "test_states",
    "test_store_machine",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of those files."""
    for item in items:
        if item.path.stem in ONCE:
            item.add_marker("once")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In CI a skipped test is a failure: what it needs must be installed there."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report
