-- name: finish_and_claim_many
-- The hot path for kinds that declared themselves harmless (`requeue`): finish many and claim many in one commit.
--
-- :slot, :token, :next_token and :spot as in finish_and_claim, and so are the places, :kinds and :on_deaths.
-- :batch_kinds are those that may be claimed together, :size is how many at most. A task that is no first attempt is
-- claimed alone, so that a poisonous one costs its neighbours one attempt at most.
-- :done, :fences, :outcomes, :results and :reasons are what I finish; the outcome `released` gives back a task that was
-- never started, its attempt with it. :kept and :kept_fences are what I hold on to: the one that is running.
--
-- Answers in one row: mine, trusted, finished (the new states, in the order of :done; null: refused, and nothing was
-- claimed), picked, conflict, spot, claimed (the tasks in the order in which they are to run, as one JSON text; null
-- for none).
with sought as (
  select coalesce(cast(:spot as tid), (select o.ctid from deadsure.slots o where o.slot = cast(:slot as uuid))) as spot
),
locked as (
  select s.ctid as spot, i.lease_until > clock_timestamp() as trusted
    from deadsure.slots s
    join deadsure.incarnations i on i.incarnation = s.incarnation
   where s.ctid = (select spot from sought)
     and s.slot = cast(:slot as uuid) and not s.ended and s.token = cast(:token as bigint)
     for update of s
),
own as (
  -- As in finish_and_claim.
  select l.trusted, l.spot from locked l where l.spot = (select spot from sought)
),
fin as (
  -- Each guarded by state, fence and owner, as in finish_and_claim.
  update deadsure.tasks t
     set (state, result, failure_reason) = (
           select v.state,
                  case when v.state = 'succeeded' then cast(d.result as jsonb) end,
                  case when v.state = 'failed' then
                    coalesce(d.reason, 'raised Canceled, but no cancel was requested') end
             from (select case
                     when d.outcome = 'failed' then 'failed'
                     when d.outcome = 'canceled' and not t.cancel_requested then 'failed'
                     when d.outcome = 'canceled' then 'canceled'
                     when t.cancel_requested and (d.outcome = 'released' or t.on_death <> 'unknown') then 'canceled'
                     when d.outcome = 'released' then 'queued'
                     else 'succeeded' end as state) v),
         attempts = t.attempts - case when d.outcome = 'released' then 1 else 0 end,
         started_at = case when d.outcome = 'released' then null else t.started_at end,
         finished_at = case when d.outcome = 'released' and not t.cancel_requested then null
                            else clock_timestamp() end,
         owner = null, version = t.version + 1
    from unnest(cast(:done as uuid[]), cast(:fences as bigint[]), cast(:outcomes as text[]), cast(:results as text[]),
                cast(:reasons as text[])) as d(id, fence, outcome, result, reason)
   where t.id = d.id and t.state = 'running' and t.fence = d.fence and t.owner = cast(:slot as uuid)
     and exists (select 1 from own)
  returning t.id, t.state, t.queue, t.priority, t.run_at, t.kind, t.on_death, t.attempts, t.max_attempts
),
back as (
  insert into deadsure.ready (queue, priority, run_at, id, kind, batchable)
  select queue, priority, run_at, id, kind, on_death = 'requeue' and max_attempts >= 2 and attempts = 0
    from fin where state = 'queued'
  on conflict do nothing
),
whole as (
  select 1 where exists (select 1 from own) and (select count(*) from fin) = cardinality(cast(:done as uuid[]))
),
places as materialized (
  select p.* from unnest(cast(:queues as text[]), cast(:priorities as integer[]), cast(:run_ats as timestamptz[]),
                         cast(:ids as uuid[])) with ordinality as p(queue, priority, run_at, id, number)
   where exists (select 1 from whole) and (select bool_or(trusted) from own)
),
head as (
  select p.number, r.queue, r.priority, r.run_at, r.id, r.batchable and r.kind = any(cast(:batch_kinds as text[])) as more
    from places p
   cross join lateral (
         select c.queue, c.priority, c.run_at, c.id, c.kind, c.batchable
           from deadsure.ready c
          where c.queue = p.queue and (c.priority, c.run_at, c.id) >= (p.priority, p.run_at, p.id)
            and c.kind = any(cast(:kinds as text[]))
          order by c.priority, c.run_at, c.id
          limit 1
            for update skip locked) r
   limit 1
),
passed as (
  select 1
    from places p
   cross join lateral (
         select c.id
           from deadsure.ready c
          where c.queue = p.queue and (c.priority, c.run_at, c.id) >= (p.priority, p.run_at, p.id)
            and c.kind = any(cast(:kinds as text[]))
          order by c.priority, c.run_at, c.id
          limit 1) r
   where p.number <= coalesce((select number from head), p.number) and r.id is distinct from (select id from head)
   limit 1
),
behind as (
  -- What stands right behind the head, up to the first that must be claimed alone: nobody is overtaken.
  select c.queue, c.priority, c.run_at, c.id,
         bool_and(c.batchable and c.kind = any(cast(:batch_kinds as text[])))
           over (order by c.priority, c.run_at, c.id) as together
    from head h
   cross join lateral (
         select r.queue, r.priority, r.run_at, r.id, r.kind, r.batchable
           from deadsure.ready r
          where r.queue = h.queue and (r.priority, r.run_at, r.id) > (h.priority, h.run_at, h.id)
            and r.kind = any(cast(:kinds as text[]))
          order by r.priority, r.run_at, r.id
          limit cast(:size as integer) - 1) c
   where h.more
),
rest as (
  select r.queue, r.priority, r.run_at, r.id
    from behind b
    join deadsure.ready r on r.queue = b.queue and r.priority = b.priority and r.run_at = b.run_at and r.id = b.id
   where b.together
     for update of r skip locked
),
gone as (
  delete from deadsure.ready r
   using (select queue, priority, run_at, id from head union all select queue, priority, run_at, id from rest) p
   where r.queue = p.queue and r.priority = p.priority and r.run_at = p.run_at and r.id = p.id
  returning r.id
),
claimed as (
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
  update deadsure.slots s
     set task_ids = cast(:kept as uuid[]) || (select coalesce(array_agg(id order by id), '{}') from claimed),
         fences = cast(:kept_fences as bigint[]) || (select coalesce(array_agg(fence order by id), '{}') from claimed),
         token = cast(:next_token as bigint)
   where s.ctid = (select spot from own) and s.slot = cast(:slot as uuid) and exists (select 1 from whole)
  returning s.ctid as spot
)
select exists (select 1 from own) as mine,
       coalesce((select bool_or(trusted) from own), false) as trusted,
       array(select f.state from unnest(cast(:done as uuid[])) with ordinality as d(id, number)
               left join fin f on f.id = d.id order by d.number) as finished,
       exists (select 1 from head) as picked, exists (select 1 from passed) as conflict,
       cast((select spot from held) as text) as spot,
       (select cast(json_agg(c order by c.priority, c.run_at, c.id) as text) from claimed c) as claimed;
