"""What a page shows while what it shows is changing."""

from __future__ import annotations

from collections.abc import Callable

from deadsure.runtime import db
from deadsure.runtime.parameters import Value
from deadsure.runtime.sql import Statement
from deadsure.runtime.store import cancel, read
from kit.store import Store


class Overtaken:
    """A session that lets somebody else act between the page's ids and its tasks."""

    def __init__(self, connection: db.Connection, act: Callable[[], object]) -> None:
        self._connection = connection
        self._act = act

    def run(self, statement: Statement, **parameters: Value) -> list[db.Row]:
        if statement.name == "tasks":
            self._act()
        return self._connection.run(statement, **parameters)


def test_a_page_of_one_state_shows_no_task_that_has_left_it_meanwhile(store: Store) -> None:
    stays, goes = store.submit(), store.submit()
    reader = Overtaken(store.connect(), lambda: cancel.cancel(store.connection, goes))
    page = read.page(reader, read.Filter(state="queued"), read.NEWEST, 50)  # type: ignore[arg-type]
    assert [task.id for task in page.tasks] == [stays]


def test_a_page_of_all_states_shows_each_task_as_it_is_read(store: Store) -> None:
    task = store.submit()
    reader = Overtaken(store.connect(), lambda: cancel.cancel(store.connection, task))
    page = read.page(reader, read.Filter(), read.NEWEST, 50)  # type: ignore[arg-type]
    assert [(shown.id, shown.state) for shown in page.tasks] == [(task, "canceled")]
