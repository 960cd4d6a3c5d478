-- name: tasks
-- Tasks as the API shows them, by their ids. A missing row: there is no such task.
select t.id, t.kind, t.queue, t.priority, t.state, cast(t.payload as text) as payload, cast(t.result as text) as result,
       t.failure_reason, t.cancel_requested, t.attempts, t.max_attempts, t.timeout, t.fence, t.version,
       t.created_at, t.run_at, t.started_at, t.finished_at,
       t.unknown_since, t.unknown_cause, t.unknown_proof, t.unknown_signal, t.unknown_phase, t.unknown_needs,
       coalesce(t.provider, k.provider) as provider,
       coalesce(t.effect_key, case when k.effect then 'deadsure-' || t.id end) as effect_key,
       t.fingerprint, cast(t.receipt as text) as receipt
  from deadsure.tasks t left join deadsure.kinds k on k.kind = t.kind
 where t.id = any(cast(:ids as uuid[]));

-- name: ping
-- Answers that the database answers.
select 1;

-- name: page
-- Ids of tasks from the newest to the oldest, below :before, of this state, kind and queue where given. It looks at no
-- more than :scan tasks, and stops at :count of them or past :bytes, so a page can be short or even empty. The row
-- with a null id comes last; its `more` tells below which id to go on, null at the end.
-- The few that run or are unknown are found through the small tables that name them, all others by their id. What is
-- looked at is read once and never joined with tasks again: without statistics that join becomes quadratic.
with looked_at as (
  (select t.id, t.state, t.kind, t.queue, pg_column_size(t.payload) + coalesce(pg_column_size(t.result), 0) as size
     from deadsure.tasks t
    where t.id < cast(:before as uuid) and coalesce(cast(:state as text), '') not in ('running', 'unknown')
    order by t.id desc limit cast(:scan as integer))
   union all
  (select t.id, t.state, t.kind, t.queue, pg_column_size(t.payload) + coalesce(pg_column_size(t.result), 0)
     from deadsure.unknowns u join deadsure.tasks t on t.id = u.id
    where u.id < cast(:before as uuid) and cast(:state as text) = 'unknown'
    order by u.id desc limit cast(:scan as integer))
   union all
  (select t.id, t.state, t.kind, t.queue, pg_column_size(t.payload) + coalesce(pg_column_size(t.result), 0)
     from deadsure.slots s cross join lateral unnest(s.task_ids) as h(id) join deadsure.tasks t on t.id = h.id
    where h.id < cast(:before as uuid) and cast(:state as text) = 'running'
    order by h.id desc limit cast(:scan as integer))
),
matching as (
  select l.id, row_number() over newest as place, sum(l.size) over newest - l.size as before
    from looked_at l
   where l.state = coalesce(cast(:state as text), l.state) and l.kind = coalesce(cast(:kind as text), l.kind)
     and l.queue = coalesce(cast(:queue as text), l.queue)
  window newest as (order by l.id desc)
),
shown as (
  select m.id from matching m where m.place <= cast(:count as integer) and m.before < cast(:bytes as bigint)
)
select s.id, cast(null as uuid) as more from shown s
 union all
select null, case when (select count(*) from shown) < (select count(*) from matching)
                    then (select s.id from shown s order by s.id limit 1)
                  when (select count(*) from looked_at) = cast(:scan as integer)
                    then (select l.id from looked_at l order by l.id limit 1) end
 order by 1 desc nulls last;

-- name: events_of
-- What happened to a task outside the normal path, oldest first; at most the last 1,000. No row: nothing did.
select e.at, e.event, cast(e.detail as text)
  from (select n.number, n.at, n.event, n.detail from deadsure.events n
         where n.task_id = cast(:id as uuid) order by n.number desc limit 1000) e
 order by e.number;

-- name: versions
-- State and version of the tasks that somebody waits for. A missing row: there is no such task.
select t.id, t.state, t.version from deadsure.tasks t where t.id = any(cast(:ids as uuid[]));
