-- What `deadsure drill soak` reads of its own kinds, and removes at the end. It judges by it; no part of the product uses it.

-- name: soak_look
-- One snapshot: how many tasks wait in this queue, and whatever contradicts itself in it. Running tasks that no slot
-- names under their fence, and queued ones that stand neither in ready nor in scheduled. Changes nothing.
select (select count(*) from deadsure.ready r where r.queue = cast(:queue as text)),
       array(select cast(t.id as text) from deadsure.tasks t
              where t.kind = any(cast(:kinds as text[])) and t.state = 'running'
                and not exists (select 1 from deadsure.slots s
                                 cross join lateral unnest(s.task_ids, s.fences) as h(id, fence)
                                 where s.slot = t.owner and h.id = t.id and h.fence = t.fence)),
       array(select cast(t.id as text) from deadsure.tasks t
              where t.kind = any(cast(:kinds as text[])) and t.state = 'queued'
                and not exists (select 1 from deadsure.ready r
                                 where r.queue = t.queue and r.priority = t.priority and r.run_at = t.run_at and r.id = t.id)
                and not exists (select 1 from deadsure.scheduled d where d.run_at = t.run_at and d.id = t.id));

-- name: soak_open
-- How many tasks of these kinds wait, run, or are unknown and will be looked up. Changes nothing.
select count(*) from deadsure.tasks t
 where t.kind = any(cast(:kinds as text[]))
   and (t.state in ('queued', 'running') or t.state = 'unknown' and t.unknown_needs = 'lookup');

-- name: soak_tasks
-- The tasks of these kinds, as they are. Changes nothing.
select cast(t.id as text), t.kind, t.idempotency_key, t.state, t.attempts, t.max_attempts, t.fence, t.version,
       t.cancel_requested, cast(t.payload as text), t.result is not null, cast(t.result as text),
       cast(t.receipt as text), t.failure_reason, t.unknown_cause, t.unknown_needs, t.unknown_proof, t.effect_key,
       t.unsettled, t.sender_gone_at is not null,
       exists (select 1 from deadsure.unknowns u where u.id = t.id)
  from deadsure.tasks t where t.kind = any(cast(:kinds as text[])) order by t.id;

-- name: soak_events
-- What happened to them outside the normal path. Changes nothing.
select cast(e.task_id as text), e.number, cast(extract(epoch from e.at) as double precision), e.event,
       cast(e.detail as text)
  from deadsure.tasks t join deadsure.events e on e.task_id = t.id
 where t.kind = any(cast(:kinds as text[])) order by e.number;

-- name: soak_decisions
-- What people decided about them. Changes nothing.
select cast(d.task_id as text), d.actor, d.evidence, d.decided, cast(d.before as text)
  from deadsure.tasks t join deadsure.decisions d on d.task_id = t.id
 where t.kind = any(cast(:kinds as text[])) order by d.at;

-- name: soak_incarnations
-- The incarnations of these pools: how each ended, and whether its lease was over by then. Changes nothing.
select cast(i.incarnation as text), i.ended_by, i.ended_at >= i.lease_until from deadsure.incarnations i
 where i.pool = cast(:pool as text) order by i.started_at;

-- name: soak_slots
-- The slots of these pools that name a task although it has ended or is somebody else's, and have not ended themselves.
-- Changes nothing.
select cast(s.slot as text), cast(h.id as text), h.fence
  from deadsure.incarnations i
  join deadsure.slots s on s.incarnation = i.incarnation
 cross join lateral unnest(s.task_ids, s.fences) as h(id, fence)
 where i.pool = cast(:pool as text) and not s.ended
   and not exists (select 1 from deadsure.tasks t
                    where t.id = h.id and t.owner = s.slot and t.fence = h.fence and t.state = 'running');

-- name: soak_clock
-- The database's time, in seconds since the epoch. Changes nothing.
select cast(extract(epoch from clock_timestamp()) as double precision);

-- name: soak_remove_decisions
-- Removes what people decided about these kinds, in a transaction in which prune_allow has allowed it.
delete from deadsure.decisions d using deadsure.tasks t
 where d.task_id = t.id and t.kind = any(cast(:kinds as text[])) returning 1;
