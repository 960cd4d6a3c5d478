-- Removing what is long over. The pages below only look; each removal after one is a transaction of its own, takes what
-- nobody holds (skip locked), in id order, and tests again what the page has seen.
--
-- No index tells when a task finished: it would hold a column that a finish changes, and end HOT updates. The walk goes
-- by id instead. An id begins with the time at which it was made, and nothing finishes before it is made: so the ids
-- made after the horizon need not be looked at. Made by a host whose clock is ahead, a task goes that much later.

-- name: prune_horizon
-- What finished before :days days ago, by the database's clock, may go. Answers: that moment; the id below which all ids
-- made up to it stand; and the moment up to which slots and incarnations may go, which is never in the last hour: a
-- recovery whose answer was lost reads its slots once more.
select h.at,
       cast(encode(substring(int8send(greatest(0, cast(floor(extract(epoch from h.at) * 1000) as bigint)) + 1) from 3)
                   || cast('\x00000000000000000000' as bytea), 'hex') as uuid),
       least(h.at, clock_timestamp() - make_interval(secs => 3600))
  from (select clock_timestamp() - make_interval(secs => cast(:days as double precision) * 86400) as at) h;

-- name: prune_page
-- The next :scan tasks behind :after, and of each whether it may go: made before :below, terminal (and so without a
-- request of unknown outcome, see unsettled_is_not_over), finished before :at. The bound is no condition of the scan:
-- given two, the planner reads and sorts all that is between them, for each page.
select t.id, t.id < cast(:below as uuid) and t.state in ('succeeded', 'failed', 'canceled')
             and t.finished_at < cast(:at as timestamptz)
  from deadsure.tasks t
 where t.id > cast(:after as uuid)
 order by t.id limit cast(:scan as integer);

-- name: prune_allow
-- Lets this transaction remove decisions; the trigger that keeps them asks for it. The right to delete is needed too.
select set_config('deadsure.pruning', 'on', true);

-- name: prune_tasks
-- Removes those of :ids that may go, each with its events, its decisions, and what a claim that was rolled back has left
-- of it in ready. Answers how many went. Refused as a whole (class 23) when a row elsewhere refers to one of them.
-- A task whose row in ready or scheduled is still to go stays until it has: else that row would outlive it, and start
-- a task of the same id, sent again, before its time.
with old as materialized (
  -- A promotion that began before the cancel, and has not committed, will put it in ready: until then it shows here.
  select t.id, t.queue, t.priority, t.run_at
    from deadsure.tasks t
   where t.id = any(cast(:ids as uuid[])) and t.state in ('succeeded', 'failed', 'canceled')
     and t.finished_at < cast(:at as timestamptz)
     and not exists (select 1 from deadsure.scheduled s where s.run_at = t.run_at and s.id = t.id)
   order by t.id for update skip locked
),
stale as (
  select r.queue, r.priority, r.run_at, r.id
    from old o
   cross join lateral (
         select c.queue, c.priority, c.run_at, c.id from deadsure.ready c
          where c.queue = o.queue and c.priority = o.priority and c.run_at = o.run_at and c.id = o.id
            for update skip locked) r
),
unready as (
  delete from deadsure.ready r using stale s
   where r.queue = s.queue and r.priority = s.priority and r.run_at = s.run_at and r.id = s.id
),
going as materialized (
  -- A claim that holds its row in ready may be rolled back, and leave it there.
  select o.id from old o
   where o.id in (select id from stale)
      or not exists (select 1 from deadsure.ready c where c.queue = o.queue and c.priority = o.priority
                                                      and c.run_at = o.run_at and c.id = o.id)
),
told as (delete from deadsure.events e where e.task_id = any(array(select id from going))),
decided as (delete from deadsure.decisions d where d.task_id = any(array(select id from going))),
gone as (delete from deadsure.tasks t where t.id = any(array(select id from going)) returning t.id)
select count(*) from gone;

-- name: prune_slots_page
-- The next :scan ended slots behind :after, and of each whether it may go: its incarnation had ended before :at, or
-- another worker had taken its seat before :at; and no task names it as its owner.
select s.slot, (i.ended_at < cast(:at as timestamptz)
                or exists (select 1 from deadsure.slots n
                            where n.incarnation = s.incarnation and n.number = s.number
                              and n.started_at > s.started_at and n.started_at < cast(:at as timestamptz)))
               and not exists (select 1 from deadsure.tasks t where t.id = any(s.task_ids) and t.owner = s.slot)
  from deadsure.slots s
  join deadsure.incarnations i on i.incarnation = s.incarnation
 where s.ended and s.slot > cast(:after as uuid)
 order by s.slot limit cast(:scan as integer);

-- name: prune_slots
-- Removes those of :ids that have ended. Answers how many went.
with old as materialized (
  select s.slot from deadsure.slots s
   where s.slot = any(cast(:ids as uuid[])) and s.ended
   order by s.slot for update skip locked
),
gone as (delete from deadsure.slots s where s.slot = any(array(select slot from old)) returning s.slot)
select count(*) from gone;

-- name: prune_incarnations_page
-- The next :scan incarnations behind :after that ended before :at, and of each whether all its slots have ended.
select i.incarnation, not exists (select 1 from deadsure.slots s
                                   where s.incarnation = i.incarnation and not s.ended)
  from deadsure.incarnations i
 where i.ended_at < cast(:at as timestamptz) and i.incarnation > cast(:after as uuid)
 order by i.incarnation limit cast(:scan as integer);

-- name: prune_incarnations
-- Removes those of :ids that have ended and have no slot left. Answers how many went.
with old as materialized (
  select i.incarnation from deadsure.incarnations i
   where i.incarnation = any(cast(:ids as uuid[])) and i.ended_at is not null
     and not exists (select 1 from deadsure.slots s where s.incarnation = i.incarnation)
   order by i.incarnation for update skip locked
),
gone as (
  delete from deadsure.incarnations i where i.incarnation = any(array(select incarnation from old))
  returning i.incarnation
)
select count(*) from gone;
