-- name: finished_under
-- What the finishes under these fences made of these tasks, and why those are unknown that are. Changes nothing. A
-- finish that leaves a task open has written an event with its fence; a terminal state under the same fence is its own.
-- A missing row: that finish did not land.
select t.kind, coalesce(e.detail ->> 'to', t.state) as state, e.detail ->> 'cause' as cause
  from unnest(cast(:ids as uuid[]), cast(:fences as bigint[])) as h(id, fence)
  join deadsure.tasks t on t.id = h.id
  left join lateral (
       select n.detail from deadsure.events n
        where n.task_id = h.id and n.event in ('unknown', 'retry') and cast(n.detail ->> 'fence' as bigint) = h.fence
        order by n.number desc limit 1) e on true
 where e.detail is not null or t.fence = h.fence and t.state in ('succeeded', 'failed', 'canceled');

-- name: claimed_under
-- Of tasks that were claimed under these fences: kind, and seconds from the time at which it might run, and was there,
-- to the claim; null when it has been claimed again since. Changes nothing.
select t.kind, case when t.fence <= h.fence + 1 then
                 cast(extract(epoch from t.started_at - greatest(t.run_at, t.created_at)) as double precision) end
  from unnest(cast(:ids as uuid[]), cast(:fences as bigint[])) as h(id, fence)
  join deadsure.tasks t on t.id = h.id;

-- name: reconciled_as
-- What the lookup of this number, under this fence, has written: kind, outcome, and the state it led to. Changes
-- nothing. No row: it has written nothing.
select t.kind, case when e.event = 'receipt_mismatch' then 'mismatch'
                    else coalesce(e.detail ->> 'verdict', e.detail ->> 'lookup') end,
       case when e.detail ->> 'to' <> 'unknown' then e.detail ->> 'to' end
  from deadsure.events e join deadsure.tasks t on t.id = e.task_id
 where e.task_id = cast(:id as uuid) and e.event in ('reconciled', 'receipt_mismatch')
   and cast(e.detail ->> 'fence' as bigint) = cast(:fence as bigint)
   and cast(e.detail ->> 'number' as integer) = cast(:number as integer)
 order by e.number limit 1;
