"""docs/applications.md: its module is imported, its tests are run, its submits are made."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import deadsure
import pg8000.dbapi
import psycopg
import pytest
from deadsure import App, Backoff, Context
from deadsure.cli.embedded import EmbeddedPostgres
from deadsure.runtime.store import pool
from kit.pages import Page, code, load
from kit.store import Store

PAGE = Page.of("applications.md")
SHOP = PAGE.blocks("file")["shop.py"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load("shop_of_the_page", SHOP, tmp_path_factory.mktemp("shop"))


@pytest.fixture(params=["pg8000", "psycopg"])
def connection(
    request: pytest.FixtureRequest, store: Store, server: EmbeddedPostgres, shop: ModuleType
) -> Iterator[Any]:
    """The shop's own connection, with the two drivers that the page names."""
    dsn = store.settings.dsn
    pool.register_kinds(store.connection, shop.app.kinds)
    if request.param == "pg8000":
        opened: Any = pg8000.dbapi.connect(dsn.user, database=dsn.database, host="127.0.0.1", port=server.port)
    else:
        opened = psycopg.connect(dbname=dsn.database, user=dsn.user, host="127.0.0.1", port=server.port)
    opened.cursor().execute("create table orders (number integer primary key)")
    opened.commit()
    yield opened
    opened.close()


def test_the_tests_of_the_page_pass(shop: ModuleType) -> None:
    tests = [test for name, test in vars(shop).items() if name.startswith("test_")]
    assert len(tests) == SHOP.count("def test_") > 5
    for test in tests:
        test()


def test_an_order_and_its_task_are_one_transaction(shop: ModuleType, connection: Any, store: Store) -> None:
    task = shop.place_order(connection, 7, ["pen"])
    assert [str(row["id"]) for row in store.query("select id from deadsure.tasks")] == [task]
    with pytest.raises(Exception, match="duplicate key"):
        shop.place_order(connection, 7, ["ink"])
    connection.rollback()
    assert len(store.query("select id from deadsure.tasks")) == 1
    assert len(shop.place_orders(connection, {8: ["pen"], 9: ["ink"]})) == 2
    assert len(store.query("select id from deadsure.tasks where kind = 'invoice.render'")) == 3


def test_a_role_with_the_two_grants_can_submit_by_sql_and_from_code(shop: ModuleType, store: Store) -> None:
    pool.register_kinds(store.connection, shop.app.kinds)
    blocks = PAGE.blocks("sql")
    grant, submit = (blocks[name].replace("to shop", "to deadsure_shop") for name in ("grant", "submit"))
    store.query("create role deadsure_shop")
    try:
        for statement in grant.split(";\n"):
            store.query(statement)
        store.query("set role deadsure_shop")
        (made,) = store.query(submit)
        with pytest.raises(Exception, match="permission denied"):
            store.query("select * from deadsure.tasks")
    finally:
        store.query("reset role")
        store.query("drop owned by deadsure_shop")
        store.query("drop role deadsure_shop")
    (task,) = store.query("select id, idempotency_key, run_at > created_at as later from deadsure.tasks")
    assert (task["id"], task["idempotency_key"], task["later"]) == (made["submit"], "invoice-7", True)


def test_the_arguments_of_a_task_are_those_of_the_code() -> None:
    listed = {code(row[0]): row[1].strip("`") for row in PAGE.table("Handlers")}
    parameters = list(inspect.signature(App.task).parameters.values())[1:]
    assert list(listed) == [parameter.name for parameter in parameters]
    assert listed.pop("backoff") == "Backoff()"
    for parameter in parameters:
        if parameter.default is not inspect.Parameter.empty and parameter.name in listed:
            assert listed[parameter.name].strip('"') == str(parameter.default)


def test_the_context_has_what_is_listed_and_nothing_else() -> None:
    listed = {code(row[0]).removesuffix("()") for row in PAGE.table("The context")}
    assert listed == {name for name in dir(Context) if not name.startswith("_")} - {"asks_to_stop"}


def test_the_defaults_of_the_backoff_are_those_that_are_given() -> None:
    backoff = Backoff()
    assert (backoff.first, backoff.factor, backoff.longest) == (1, 2, 3600)
    assert 0.5 <= backoff.delay(1) <= 1
    assert 2 <= backoff.delay(3) <= 4


def test_every_name_that_the_page_imports_is_public() -> None:
    assert {"App", "Backoff", "Context", "Intent", "submit", "submit_many"} <= set(deadsure.__all__)


def test_the_modules_file_is_what_the_page_calls_it(tmp_path: Path) -> None:
    assert "`shop.py`" in PAGE.text
    assert load("shop", SHOP, tmp_path).app.handler("refund").provider is not None
