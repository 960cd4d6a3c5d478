-- name: register_incarnation
-- A supervisor's boot, with a lease by the database's clock. The id is random: a repeat of the same insert is not an
-- error, so that a lost answer can be sent again.
insert into deadsure.incarnations (incarnation, pool, token, lease_until, lock_id, lock_device, lock_inode, boot_id,
                                   host, pid)
values (cast(:incarnation as uuid), cast(:pool as text), cast(:token as bigint),
        clock_timestamp() + make_interval(secs => cast(:lease as double precision)), cast(:lock_id as uuid),
        cast(:lock_device as bigint), cast(:lock_inode as bigint), cast(:boot_id as text), cast(:host as text),
        cast(:pid as integer))
on conflict (incarnation) do nothing;

-- name: renew_lease
-- One renewal per incarnation. The token must be the last one confirmed, or the one of a renewal whose answer was
-- lost: so a cloned machine is refused, and one lost answer kills nobody. Answers whether another incarnation is alive,
-- which may have idle workers. No row: refused.
update deadsure.incarnations i
   set lease_until = clock_timestamp() + make_interval(secs => cast(:lease as double precision)),
       token = cast(:next_token as bigint)
 where i.incarnation = cast(:incarnation as uuid) and i.ended_at is null
   and i.token = any(cast(:tokens as bigint[]))
returning exists (select 1 from deadsure.incarnations o
                   where o.incarnation <> i.incarnation and o.ended_at is null and o.lease_until > clock_timestamp());

-- name: lock_incarnation
-- First statement of an orderly end: waits for whoever registers a slot under it just now, so that the second, with a
-- fresh snapshot, sees that slot. No row: there is no such incarnation.
select i.incarnation from deadsure.incarnations i where i.incarnation = cast(:incarnation as uuid) for update;

-- name: end_incarnation
-- The last act of an orderly stop: all its slots have been ended by the proof of their exit. No row: it had ended.
update deadsure.incarnations i set ended_at = clock_timestamp(), ended_by = 'exit'
 where i.incarnation = cast(:incarnation as uuid) and i.ended_at is null
   and not exists (select 1 from deadsure.slots s where s.incarnation = i.incarnation and not s.ended)
returning i.incarnation;

-- name: lease_left
-- Seconds that the last lease under this lock file still has; negative once it is over. Null: no incarnation under it
-- is open.
select cast(extract(epoch from max(i.lease_until) - clock_timestamp()) as double precision)
  from deadsure.incarnations i
 where i.ended_at is null and i.pool = cast(:pool as text) and i.lock_id = cast(:lock_id as uuid);

-- name: register_slot
-- A forked worker's row, only under an incarnation that has not ended. May be repeated with the same id, should the
-- answer have been lost. No row: the incarnation has ended, the worker must exit.
with alive as (
  select i.incarnation from deadsure.incarnations i
   where i.incarnation = cast(:incarnation as uuid) and i.ended_at is null
     for share
),
made as (
  insert into deadsure.slots (slot, incarnation, number, token)
  select cast(:slot as uuid), a.incarnation, cast(:number as integer), cast(:token as bigint) from alive a
  on conflict (slot) do nothing
)
select a.incarnation from alive a;

-- name: register_kind
-- What a worker says about one of its kinds. Writes only when something differs.
insert into deadsure.kinds as k (kind, on_death, effect, provider, contract, max_attempts, timeout, queue, priority)
values (cast(:kind as text), cast(:on_death as text), cast(:provider as text) is not null, cast(:provider as text),
        cast(:contract as jsonb), cast(:max_attempts as integer), cast(:timeout as double precision),
        cast(:queue as text), cast(:priority as integer))
on conflict (kind) do update
   set on_death = excluded.on_death, effect = excluded.effect, provider = excluded.provider,
       contract = excluded.contract, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
       queue = excluded.queue, priority = excluded.priority, registered_at = clock_timestamp()
 where (k.on_death, k.provider, k.contract, k.max_attempts, k.timeout, k.queue, k.priority) is distinct from
       (excluded.on_death, excluded.provider, excluded.contract, excluded.max_attempts, excluded.timeout,
        excluded.queue, excluded.priority);

-- name: cancel_requests
-- The attempts that run under this incarnation and were asked to stop. Changes nothing.
select t.id, t.fence
  from deadsure.slots s
  join deadsure.tasks t on t.id = any(s.task_ids) and t.owner = s.slot
 where s.incarnation = cast(:incarnation as uuid) and not s.ended and t.cancel_requested;

-- name: count_waiting
-- How many tasks wait in these queues, and how many for a later time.
select (select count(*) from deadsure.ready r where r.queue = any(cast(:queues as text[]))) +
       (select count(*) from deadsure.scheduled);

-- name: promote
-- Moves tasks whose time has come from scheduled to ready. A row that somebody holds is left for the next time; one
-- whose task is no longer queued just leaves. Returns how many moved.
with due as (
  select s.run_at, s.id from deadsure.scheduled s where s.run_at <= clock_timestamp()
   order by s.run_at, s.id limit 1000 for update skip locked
),
gone as (
  delete from deadsure.scheduled s using due d where s.run_at = d.run_at and s.id = d.id returning s.id
),
moved as (
  insert into deadsure.ready (queue, priority, run_at, id, kind, batchable)
  select t.queue, t.priority, t.run_at, t.id, t.kind,
         t.on_death = 'requeue' and t.max_attempts >= 2 and t.attempts = 0
    from deadsure.tasks t join gone g on g.id = t.id
   where t.state = 'queued'
  on conflict do nothing
  returning 1
)
select count(*) from moved;

-- name: listen
-- From now on this session hears what is announced.
listen deadsure_ready;

-- name: announce
-- Tells every supervisor that listens that there may be work. A NOTIFY makes its transaction wait for the disk and for
-- a synchronous standby, under a lock that all others wait for. A hint is not worth that, so here it does not.
select set_config('synchronous_commit', 'off', true), pg_notify('deadsure_ready', cast(:sender as text));

-- name: hear
-- Asks for nothing: the driver reads what was announced with the answer.
select 1;
