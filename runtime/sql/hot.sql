-- name: finish_and_claim
-- The hot path: finish the task in hand and claim the next one, in one round trip and one commit.
--
-- :slot and :token name my slot row and the token it must still carry; :next_token is what it carries afterwards.
-- :spot is where the row's newest version was last seen, null for not known. Each task writes the row anew, and while
-- somebody holds an old snapshot all these versions stay: by its index the row would be found behind thousands of them.
-- :id is the task I finish, null for none; :fence, :outcome, :result and :reason belong to it.
-- :queues, :priorities, :run_ats and :ids are the places where to look for the next one, in order: a queue, and the
-- position in it from which to look on. Empty for a finish alone.
-- :kinds and :on_deaths are what this worker can run, and what it declares about each.
--
-- Answers in one row: mine (false: the slot has ended or carries another token, nothing happened), trusted (false:
-- the lease is over, nothing was claimed), finished (the new state; null though :id was sent: the finish was refused
-- and nothing was claimed), picked (true with nothing claimed: a stale row of ready was dropped, ask again at once),
-- conflict (a row that was passed over is held, or was just taken, by another worker), spot (where the slot's row
-- is now), claimed (the task as one JSON text, which is read faster than eleven values; null for none).
with sought as (
  select coalesce(cast(:spot as tid), (select o.ctid from deadsure.slots o where o.slot = cast(:slot as uuid))) as spot
),
locked as (
  -- 1. My slot first: the lock order is slot, then task, for everybody. The lease is asked for the claim only: while
  --    the slot has not ended nobody else has decided, and a known result must not be thrown away.
  select s.ctid as spot, i.lease_until > clock_timestamp() as trusted
    from deadsure.slots s
    join deadsure.incarnations i on i.incarnation = s.incarnation
   where s.ctid = (select spot from sought)
     and s.slot = cast(:slot as uuid) and not s.ended and s.token = cast(:token as bigint)
     for update of s
),
own as (
  -- A version that came while we waited for the lock is not this statement's to write: step 6 would not see it. Some
  -- releases of PostgreSQL do not compare a ctid again after waiting.
  select l.trusted, l.spot from locked l where l.spot = (select spot from sought)
),
fin as (
  -- 2. The finish, guarded by state, fence AND owner: a fence can repeat after a failover that lost a claim. A cancel
  --    request turns the success of a kind that declared itself harmless into `canceled`; what it finds is decided on
  --    the row version that is written, so a cancel that comes first always counts.
  update deadsure.tasks t
     set (state, result, failure_reason) = (
           select v.state,
                  case when v.state = 'succeeded' then cast(:result as jsonb) end,
                  case when v.state = 'failed' then
                    coalesce(cast(:reason as text), 'raised Canceled, but no cancel was requested') end
             from (select case
                     when cast(:outcome as text) = 'failed' then 'failed'
                     when cast(:outcome as text) = 'canceled' and not t.cancel_requested then 'failed'
                     when cast(:outcome as text) = 'canceled' then 'canceled'
                     when t.cancel_requested and t.on_death <> 'unknown' then 'canceled'
                     else 'succeeded' end as state) v),
         owner = null, finished_at = clock_timestamp(), version = t.version + 1
   where t.id = cast(:id as uuid) and t.state = 'running' and t.fence = cast(:fence as bigint)
     and t.owner = cast(:slot as uuid) and exists (select 1 from own)
  returning t.state
),
may as (
  -- 3. Only if the slot is mine, the lease is valid and the finish that was sent has changed its row.
  select 1 where (select bool_or(trusted) from own)
             and (select count(*) from fin) = case when cast(:id as uuid) is null then 0 else 1 end
),
places as materialized (
  select p.* from unnest(cast(:queues as text[]), cast(:priorities as integer[]), cast(:run_ats as timestamptz[]),
                         cast(:ids as uuid[])) with ordinality as p(queue, priority, run_at, id, number)
   where exists (select 1 from may)
),
picked as (
  -- 4. Pick. The places are tried in the order given: the limit stops the loop at the first that has something.
  select p.number, r.queue, r.priority, r.run_at, r.id
    from places p
   cross join lateral (
         select c.queue, c.priority, c.run_at, c.id
           from deadsure.ready c
          where c.queue = p.queue and (c.priority, c.run_at, c.id) >= (p.priority, p.run_at, p.id)
            and c.kind = any(cast(:kinds as text[]))
          order by c.priority, c.run_at, c.id
          limit 1
            for update skip locked) r
   limit 1
),
passed as (
  -- A place on the way that shows, without a lock, another row first: somebody else has that one.
  select 1
    from places p
   cross join lateral (
         select c.id
           from deadsure.ready c
          where c.queue = p.queue and (c.priority, c.run_at, c.id) >= (p.priority, p.run_at, p.id)
            and c.kind = any(cast(:kinds as text[]))
          order by c.priority, c.run_at, c.id
          limit 1) r
   where p.number <= coalesce((select number from picked), p.number) and r.id is distinct from (select id from picked)
   limit 1
),
gone as (
  delete from deadsure.ready r using picked p
   where r.queue = p.queue and r.priority = p.priority and r.run_at = p.run_at and r.id = p.id
  returning r.id
),
claimed as (
  -- 5. The claim. Its only condition is `queued`: all others are tested before the row leaves ready.
  update deadsure.tasks t
     set state = 'running', fence = t.fence + 1, attempts = t.attempts + 1, owner = cast(:slot as uuid),
         on_death = (cast(:on_deaths as text[]))[array_position(cast(:kinds as text[]), t.kind)],
         started_at = clock_timestamp(), version = t.version + 1
    from gone
   where t.id = gone.id and t.state = 'queued'
  returning t.id, t.fence, t.kind, t.attempts as attempt, t.timeout, t.queue, t.priority, t.run_at, t.started_at,
            cast(t.payload as text) as payload, t.created_at
),
held as (
  -- 6. The slot names what was really claimed and gets a new token: a late copy of this statement can do nothing.
  update deadsure.slots s
     set task_ids = (select coalesce(array_agg(id), '{}') from claimed),
         fences = (select coalesce(array_agg(fence), '{}') from claimed),
         token = cast(:next_token as bigint)
   where s.ctid = (select spot from own) and s.slot = cast(:slot as uuid)
     and (select count(*) from fin) = case when cast(:id as uuid) is null then 0 else 1 end
  returning s.ctid as spot
)
select exists (select 1 from own) as mine,
       coalesce((select bool_or(trusted) from own), false) as trusted,
       (select state from fin) as finished,
       exists (select 1 from picked) as picked, exists (select 1 from passed) as conflict,
       cast((select spot from held) as text) as spot, (select cast(to_json(c) as text) from claimed c) as claimed;

-- name: why_refused
-- Reads why a finish was refused; changes nothing. No row: there is no such task.
select t.state, t.fence, t.owner from deadsure.tasks t where t.id = cast(:id as uuid);

-- name: slot_take_over
-- After a lost answer: locks my slot row, gives it a new token and reads what it names. The lost statement, should it
-- still arrive, fails on its token. No row: the slot does not exist, or carries a token that is none of :tokens, those
-- that it can rightly carry: then a failover has lost what this worker was told, and what the slot names is old.
update deadsure.slots s set token = cast(:next_token as bigint)
 where s.slot = cast(:slot as uuid) and s.token = any(cast(:tokens as bigint[]))
returning s.ended, s.task_ids, s.fences;

-- name: claimed_task
-- Reads a task that the slot is known to hold, to start it. No row: it is no longer the slot's.
select cast(to_json(c) as text)
  from (select t.id, t.fence, t.kind, t.attempts as attempt, t.timeout, t.queue, t.priority, t.run_at, t.started_at,
               cast(t.payload as text) as payload, t.created_at
          from deadsure.tasks t
         where t.id = cast(:id as uuid) and t.state = 'running' and t.owner = cast(:slot as uuid)
           and t.fence = cast(:fence as bigint)) c;

-- name: end_backend
-- Ends the server session that may still carry out the lost statement, waiting at most 1.5 s. Its start time is
-- compared because a pid is handed out again. One that waits for a synchronous standby is left alone: it has committed,
-- and whoever ends it shows what may still be lost; its locks make us wait with it. False or no row: it is not there any
-- more, or is left alone.
select pg_terminate_backend(a.pid, 1500) from pg_stat_activity a
 where a.pid = cast(:pid as integer) and a.backend_start = cast(:started as timestamptz)
   and a.wait_event is distinct from 'SyncRep';

-- name: backend_identity
-- This session's server process, so that a later session can end exactly it.
select a.pid, cast(a.backend_start as text) from pg_stat_activity a where a.pid = pg_backend_pid();
