-- name: cancel
-- Queued: canceled at once. Running or unknown: only the request is noted. The task is locked first; its row in ready
-- or scheduled is removed if nobody holds it, else the claim that holds it drops it. No row: terminal, or no such task.
with t as (
  update deadsure.tasks t
     set state = case when t.state = 'queued' then 'canceled' else t.state end,
         finished_at = case when t.state = 'queued' then clock_timestamp() end,
         cancel_requested = true, version = t.version + 1
   where t.id = cast(:id as uuid) and t.state in ('queued', 'running', 'unknown')
  returning t.id, t.state, t.queue, t.priority, t.run_at
),
stale as (
  select r.queue, r.priority, r.run_at, r.id from deadsure.ready r
   where (r.queue, r.priority, r.run_at, r.id) in (select queue, priority, run_at, id from t where state = 'canceled')
     for update skip locked
),
unready as (
  delete from deadsure.ready r using stale s
   where r.queue = s.queue and r.priority = s.priority and r.run_at = s.run_at and r.id = s.id
),
unscheduled as (
  delete from deadsure.scheduled d
   where (d.run_at, d.id) in (select s.run_at, s.id from deadsure.scheduled s
                               where (s.run_at, s.id) in (select run_at, id from t where state = 'canceled')
                                 for update skip locked)
)
select state from t;
