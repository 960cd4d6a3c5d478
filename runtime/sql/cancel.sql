-- name: cancel
-- Queued: canceled at once; but with an unsettled perform it becomes unknown, because its earlier request may still
-- land. Running or unknown: only the request is noted, once. The task is locked first; its row in ready or scheduled
-- is removed if nobody holds it, else the claim that holds it drops it. One row: something changed; the last column
-- says whether it was queued. No row: the task is terminal, its cancel had been requested, or there is no such task.
with t as (
  update deadsure.tasks t
     set state = case when t.state <> 'queued' then t.state when t.unsettled then 'unknown' else 'canceled' end,
         finished_at = case when t.state = 'queued' and not t.unsettled then clock_timestamp() end,
         unknown_since = case when t.state = 'queued' and t.unsettled then clock_timestamp() else t.unknown_since end,
         unknown_cause = case when t.state = 'queued' and t.unsettled then 'unsettled_attempt'
                              else t.unknown_cause end,
         unknown_needs = case when t.state = 'queued' and t.unsettled then
                                coalesce((select 'lookup' from deadsure.kinds k
                                           where k.kind = t.kind and k.contract ->> 'lookup' = 'true'), 'decision')
                              else t.unknown_needs end,
         cancel_requested = true, version = t.version + 1
   where t.id = cast(:id as uuid)
     and (t.state = 'queued' or t.state in ('running', 'unknown') and not t.cancel_requested)
  returning t.id, t.kind, t.state, t.fence, t.queue, t.priority, t.run_at, t.provider, t.unknown_since, t.unknown_needs
),
stale as (
  select r.queue, r.priority, r.run_at, r.id from deadsure.ready r
   where (r.queue, r.priority, r.run_at, r.id) in (select queue, priority, run_at, id from t where state <> 'running')
     for update skip locked
),
unready as (
  delete from deadsure.ready r using stale s
   where r.queue = s.queue and r.priority = s.priority and r.run_at = s.run_at and r.id = s.id
),
unscheduled as (
  delete from deadsure.scheduled d
   where (d.run_at, d.id) in (select s.run_at, s.id from deadsure.scheduled s
                               where (s.run_at, s.id) in (select run_at, id from t where state <> 'running')
                                 for update skip locked)
),
unknown as (
  insert into deadsure.unknowns (id, kind, provider, needs, since, lookup_at)
  select id, kind, provider, unknown_needs, unknown_since, unknown_since from t where state = 'unknown'
  on conflict (id) do nothing
  returning id
),
done as (
  select t.*, t.state = 'canceled' or exists (select 1 from unknown) as was_queued from t
),
told as (
  insert into deadsure.events (task_id, event, detail)
  select id, 'cancel_requested', jsonb_build_object('actor', cast(:actor as text), 'to', state, 'fence', fence)
         || case when cast(:request as uuid) is null then '{}'
                 else jsonb_build_object('request', cast(:request as uuid), 'was_queued', was_queued) end
    from done
)
select state, kind, was_queued from done;

-- name: canceled_by
-- What this very request made of the task, when its answer was lost: the answer of `cancel`. Changes nothing. No row: it
-- has changed nothing.
select e.detail ->> 'to', t.kind, cast(e.detail ->> 'was_queued' as boolean)
  from deadsure.events e join deadsure.tasks t on t.id = e.task_id
 where e.task_id = cast(:id as uuid) and e.event = 'cancel_requested'
   and e.detail ->> 'request' = cast(:request as text);
