-- name: bench_pace
-- How many tasks of a kind are over, and the seconds in which the middle eight tenths of them were finished: without
-- the start and the end of a run. Changes nothing.
with over as (
  select t.finished_at, percent_rank() over (order by t.finished_at) as rank
    from deadsure.tasks t where t.kind = cast(:kind as text) and t.finished_at is not null
)
select count(*), count(*) filter (where rank between 0.1 and 0.9),
       cast(extract(epoch from max(finished_at) filter (where rank between 0.1 and 0.9)
                             - min(finished_at) filter (where rank between 0.1 and 0.9)) as double precision)
  from over;

-- name: bench_open
-- Whether a task of these kinds waits or runs. Changes nothing.
select exists (select 1 from deadsure.ready r where r.queue = cast(:queue as text))
       or exists (select 1 from deadsure.slots s join deadsure.incarnations i on i.incarnation = s.incarnation
                   where i.pool = cast(:queue as text) and not s.ended and cardinality(s.task_ids) > 0);

-- name: bench_pickups
-- Seconds from the commit of each submit (its own time, just before) to the start of its handler's claim. Changes
-- nothing.
select cast(extract(epoch from t.started_at - t.created_at) as double precision)
  from deadsure.tasks t where t.kind = cast(:kind as text) and t.started_at is not null;

-- name: bench_state
-- The state of a task, read as fast as can be.
select t.state from deadsure.tasks t where t.id = cast(:id as uuid);

-- name: bench_hands
-- What pgbench's clients begin with: a slot, its token and its spot, and the task that it already holds.
select s.number, s.slot, s.token, cast(s.ctid as text) as spot, t.queue, t.id, t.fence, t.priority, t.run_at
  from deadsure.slots s
  join deadsure.incarnations i on i.incarnation = s.incarnation
  join deadsure.tasks t on t.id = s.task_ids[1]
 where i.pool = cast(:pool as text) and not s.ended
 order by s.number;

-- name: bench_bare_insert
-- The floor of a bulk submit: the same rows in the same two tables, and nothing else.
with stored as (
  insert into deadsure.tasks (id, kind, queue, priority, on_death, max_attempts, created_at, run_at, payload)
  select a.id, cast(:kind as text), cast(:queue as text), 0, 'fail', 1, clock_timestamp(), clock_timestamp(),
         cast(a.payload as jsonb)
    from unnest(cast(:ids as uuid[]), cast(:payloads as text[])) as a(id, payload)
  returning queue, priority, run_at, id, kind
)
insert into deadsure.ready (queue, priority, run_at, id, kind)
select queue, priority, run_at, id, kind from stored;
