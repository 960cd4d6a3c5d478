"""Tasks that are old: made a while ago, finished a while ago, with all their parts."""

from __future__ import annotations

from uuid import UUID

from deadsure.runtime.ids import uuid7

from .store import Store

DAY = 86400
#: Where a task's id stands beside its own row.
PARTS = {"events": "task_id", "decisions": "task_id", "unknowns": "id", "ready": "id", "scheduled": "id"}


def age(store: Store, task: UUID, *, made: float, finished: float | None = None) -> UUID:
    """Move the task so many days into the past, with its id, which tells when it was made, in every table."""
    old = _made_earlier(task, made)
    moved = [f"update deadsure.{table} set {column} = '{old}' where {column} = '{task}'"
             for table, column in PARTS.items()]  # fmt: skip
    ended = made if finished is None else finished
    store.connection._driver.run(f"""
      begin;
      set local session_replication_role = replica;
      {";".join(moved)};
      update deadsure.slots set task_ids = array_replace(task_ids, '{task}', '{old}');
      update deadsure.tasks set id = '{old}', created_at = created_at - interval '{made * DAY} seconds',
             started_at = started_at - interval '{ended * DAY} seconds',
             finished_at = finished_at - interval '{ended * DAY} seconds' where id = '{task}';
      commit""")
    return old


def many(store: Store, number: int, *, days: float = 40) -> None:
    """So many tasks that succeeded so long ago, each with an event and a decision."""
    driver = store.connection._driver
    driver.run(f"""
      insert into deadsure.tasks (id, kind, queue, priority, state, on_death, attempts, max_attempts, fence,
                                  created_at, run_at, started_at, finished_at, payload, result)
      select cast(encode(overlay(uuid_send(gen_random_uuid()) placing substring(int8send(cast(extract(epoch from
                    o.at) * 1000 as bigint) + n) from 3) from 1 for 6), 'hex') as uuid),
             'plain', 'default', 0, 'succeeded', 'unknown', 1, 1, 1, o.at, o.at, o.at, o.at, '{{}}', '{{}}'
        from generate_series(1, {number}) n,
             (select clock_timestamp() - interval '{days * DAY} seconds' as at) o""")
    driver.run("insert into deadsure.events (task_id, event, detail) select id, 'recovered', '{}' from deadsure.tasks")
    driver.run("""insert into deadsure.decisions (decision, task_id, actor, evidence, decided, before)
                  select gen_random_uuid(), id, 'alice', 'seen', 'succeeded', '{}' from deadsure.tasks""")


def left(store: Store) -> set[UUID]:
    """The ids of all tasks that are there."""
    return {row["id"] for row in store.query("select id from deadsure.tasks")}  # type: ignore[misc]


def orphans(store: Store) -> dict[str, int]:
    """How many parts there are whose task is gone, by table; empty when there are none."""
    found = {}
    for table, column in PARTS.items():
        text = f"select from deadsure.{table} p where not exists (select from deadsure.tasks t where t.id = p.{column})"
        if number := len(store.query(text)):
            found[table] = number
    return found


def _made_earlier(task: UUID, days: float) -> UUID:
    milliseconds = (uuid7().int >> 80) - int(days * DAY * 1000)
    return UUID(int=milliseconds << 80 | task.int & (2**80 - 1))
