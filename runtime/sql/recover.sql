-- name: end_slots
-- First statement of a recovery: the slots take part in nothing any more. Locked in id order, as everywhere.
-- Returns every slot that exists, also one that had ended before: a repeated recovery must go on to settle. With what
-- it names: all that its worker held.
with locked as (
  select s.slot from deadsure.slots s where s.slot = any(cast(:slots as uuid[])) order by s.slot for update
)
update deadsure.slots s set ended = true from locked l where s.slot = l.slot
returning s.slot, s.task_ids, s.fences;

-- name: end_incarnations_by_lock
-- Ends the incarnations that held exactly this lock file: holding it now proves that all their processes are gone.
update deadsure.incarnations i set ended_at = clock_timestamp(), ended_by = 'pool_lock'
 where i.ended_at is null and i.pool = cast(:pool as text) and i.lock_id = cast(:lock_id as uuid)
   and i.lock_device = cast(:lock_device as bigint) and i.lock_inode = cast(:lock_inode as bigint)
   and i.boot_id = cast(:boot_id as text) and i.incarnation <> cast(:incarnation as uuid)
returning i.incarnation;

-- name: end_expired_incarnations
-- Ends the incarnations whose lease is over, by the database's clock at this very write. One that is being renewed or
-- swept by somebody else is left alone. With the seconds since then. No row: nobody is lost.
with lost as (
  select i.incarnation from deadsure.incarnations i
   where i.ended_at is null and i.lease_until < clock_timestamp() and i.incarnation <> cast(:incarnation as uuid)
   order by i.incarnation for update skip locked
)
update deadsure.incarnations i set ended_at = clock_timestamp(), ended_by = 'lease'
  from lost l where i.incarnation = l.incarnation and i.lease_until < clock_timestamp()
returning i.incarnation, cast(extract(epoch from clock_timestamp() - i.lease_until) as double precision);

-- name: slots_of
-- The slots of these incarnations that have not ended.
select s.slot from deadsure.slots s where s.incarnation = any(cast(:incarnations as uuid[])) and not s.ended;

-- name: slots_ended_by_lock
-- The slots of the incarnations that this one has ended because it holds their lock, also by a recovery whose answer
-- was lost: nobody else can have held that lock since this incarnation began.
select s.slot
  from deadsure.incarnations me
  join deadsure.incarnations i on i.lock_id = me.lock_id and i.lock_device = me.lock_device
                              and i.lock_inode = me.lock_inode and i.boot_id = me.boot_id and i.pool = me.pool
  join deadsure.slots s on s.incarnation = i.incarnation
 where me.incarnation = cast(:incarnation as uuid) and i.ended_by = 'pool_lock' and i.ended_at >= me.started_at;

-- name: recovered
-- What the recovery of these slots has settled, from what it wrote into the events. Changes nothing. No row: nothing.
select t.id, t.kind, e.detail ->> 'to', h.fence + 1, cast(e.detail ->> 'attempt' as integer)
  from deadsure.slots s
 cross join lateral unnest(s.task_ids, s.fences) as h(id, fence)
  join deadsure.tasks t on t.id = h.id
  join deadsure.events e on e.task_id = h.id and e.event = 'recovered'
   and e.detail @> jsonb_build_object('fence', h.fence + 1, 'proof', cast(:proof as text))
 where s.slot = any(cast(:slots as uuid[])) and s.ended;

-- name: settle
-- Second statement of a recovery, in the same transaction and with a fresh snapshot: a claim that landed while the
-- slots were being locked is seen. Settles what the ended slots hold, by each task's own on_death, and raises its
-- fence. Returns what was settled. No row: they held nothing, or all of it had been finished.
with held as (
  select t.id, t.cancel_requested, t.on_death, t.attempts, t.max_attempts, t.unsettled, k.provider,
         coalesce(k.contract ->> 'lookup' = 'true' or k.contract ->> 'dedups_by_key' = 'true', false) as can_look_up
    from deadsure.slots s
    join deadsure.tasks t on t.id = any(s.task_ids) and t.owner = s.slot and t.state = 'running'
    left join deadsure.kinds k on k.kind = t.kind
   where s.slot = any(cast(:slots as uuid[])) and s.ended
   order by t.id
     for update of t
),
verdict as (
  select h.*, case
           -- Its kind had an effect when an earlier attempt called: that may still have been done.
           when h.unsettled then 'unknown'
           when h.on_death = 'fail' then 'failed'
           when h.on_death = 'unknown' then 'unknown'
           when h.cancel_requested then 'canceled'
           when h.attempts < h.max_attempts then 'queued'
           else 'failed' end as state
    from held h
),
settled as (
  update deadsure.tasks t
     set state = v.state, fence = t.fence + 1, version = t.version + 1, owner = null,
         finished_at = case when v.state in ('failed', 'canceled') then clock_timestamp() end,
         failure_reason = case when v.state = 'failed' then cast(:reason as text) ||
           case when v.on_death = 'requeue' then '; all ' || v.max_attempts || ' attempts are spent' ||
             coalesce((select ', earlier deaths: ' ||
                              string_agg(coalesce(e.detail ->> 'signal', e.detail ->> 'proof'), ', ' order by e.number)
                         from deadsure.events e where e.task_id = t.id and e.event = 'recovered'), '')
           else '' end end,
         unknown_since = case when v.state = 'unknown' then clock_timestamp() end,
         unknown_cause = case when v.state = 'unknown' then cast(:cause as text) end,
         unknown_needs = case when v.state = 'unknown' then
           case when v.can_look_up then 'lookup' else 'decision' end end,
         -- Only the proof of an exit, with all it left behind, says that nothing can be sent any more.
         sender_gone_at = case when cast(:senders_gone as boolean) then clock_timestamp() end,
         unknown_proof = case when v.state = 'unknown' then cast(:proof as text) end,
         unknown_signal = case when v.state = 'unknown' then cast(:signal as text) end,
         unknown_phase = case when v.state = 'unknown' then cast(:phase as text) end
    from verdict v
   where t.id = v.id
  returning t.id, t.kind, t.queue, t.priority, t.run_at, t.state, t.fence, t.attempts, t.unknown_since,
            t.unknown_needs, v.provider
),
requeued as (
  insert into deadsure.ready (queue, priority, run_at, id, kind)
  select queue, priority, run_at, id, kind from settled where state = 'queued'
  on conflict do nothing
),
unknown as (
  insert into deadsure.unknowns (id, kind, provider, needs, since, lookup_at)
  select id, kind, provider, unknown_needs, unknown_since, unknown_since from settled where state = 'unknown'
),
told as (
  insert into deadsure.events (task_id, event, detail)
  select id, 'recovered', cast(:evidence as jsonb) || jsonb_build_object(
           'proof', cast(:proof as text), 'signal', cast(:signal as text), 'phase', cast(:phase as text),
           'to', state, 'fence', fence, 'attempt', attempts)
    from settled
)
select id, kind, state, fence, attempts from settled;

-- name: swept_by
-- What this incarnation has settled by leases that were over, since it registered. Changes nothing.
select t.id, t.kind, e.detail ->> 'to', h.fence + 1, cast(e.detail ->> 'attempt' as integer)
  from deadsure.incarnations me
  join deadsure.incarnations i on i.ended_by = 'lease' and i.ended_at >= me.started_at
  join deadsure.slots s on s.incarnation = i.incarnation and s.ended
 cross join lateral unnest(s.task_ids, s.fences) as h(id, fence)
  join deadsure.tasks t on t.id = h.id
  join deadsure.events e on e.task_id = h.id and e.event = 'recovered'
   and e.detail @> jsonb_build_object('fence', h.fence + 1, 'proof', 'lease', 'by', me.incarnation)
 where me.incarnation = cast(:incarnation as uuid);
