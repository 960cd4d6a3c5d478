-- Figures for the metrics. They only read, each is bounded, and a statement that takes too long ends by its
-- statement_timeout: then that figure is not shown. Queues that neither the pool nor a kind names are told as `other`,
-- because whoever submits can name any.

-- name: figures_timeout
-- From here to the end of this transaction a statement may take :milliseconds.
select set_config('statement_timeout', cast(:milliseconds as text), true);

-- name: figures_ready
-- What may run now, by queue: how many, and for how many seconds the oldest has been due. Exact up to :most in a queue;
-- beyond it an estimate from PostgreSQL's statistics. It steps from queue to queue and from priority to priority, at
-- most 100 of each, so that the number of rows does not matter.
with recursive known as (
  select k.queue from deadsure.kinds k union select unnest(cast(:queues as text[]))
),
found as (
  (select r.queue, 1 as step from deadsure.ready r order by r.queue limit 1)
   union all
  select n.queue, f.step + 1
    from found f
   cross join lateral (select r.queue from deadsure.ready r where r.queue > f.queue order by r.queue limit 1) n
   where f.step < 100
),
size as (
  select case when c.reltuples >= 0 and c.relpages > 0 then c.reltuples / c.relpages else 80 end
         * (pg_relation_size(c.oid) / current_setting('block_size')::integer) as rows
    from pg_class c where c.oid = cast('deadsure.ready' as regclass)
),
share as (
  select m.queue, m.share
    from pg_stats s
   cross join lateral unnest(cast(cast(s.most_common_vals as text) as text[]), s.most_common_freqs) as m(queue, share)
   where s.schemaname = 'deadsure' and s.tablename = 'ready' and s.attname = 'queue'
),
counted as (
  select f.queue, n.number, d.oldest
    from found f
   cross join lateral (
         select count(*) as number
           from (select 1 from deadsure.ready r where r.queue = f.queue
                  order by r.priority, r.run_at, r.id limit cast(:most as integer) + 1) r) n
   cross join lateral (
         with recursive first as (
           (select r.priority, r.run_at, 1 as step from deadsure.ready r
             where r.queue = f.queue order by r.priority, r.run_at, r.id limit 1)
            union all
           select n.priority, n.run_at, p.step + 1
             from first p
            cross join lateral (
                  select r.priority, r.run_at from deadsure.ready r
                   where r.queue = f.queue and r.priority > p.priority
                   order by r.priority, r.run_at, r.id limit 1) n
            where p.step < 100)
         select min(p.run_at) as oldest from first p) d
),
rest as (
  -- What is left for each of the long queues, where the statistics do not know how it is shared out.
  select ((select rows from size) - coalesce(sum(c.number) filter (where c.number <= cast(:most as integer)), 0))
         / greatest(1, count(*) filter (where c.number > cast(:most as integer))) as rows
    from counted c
)
select case when c.queue in (select queue from known) then c.queue else 'other' end,
       cast(sum(case when c.number <= cast(:most as integer) then c.number
                     else greatest(c.number, coalesce((select rows from size) * s.share, (select rows from rest))) end)
            as bigint),
       cast(extract(epoch from clock_timestamp() - min(c.oldest)) as double precision)
  from counted c left join share s on s.queue = c.queue
 group by 1;

-- name: figures_scheduled
-- What is queued for a later time, by queue. Exact up to :most; beyond it the first :most stand for all.
with known as (
  select k.queue from deadsure.kinds k union select unnest(cast(:queues as text[]))
),
first as (
  select s.id from deadsure.scheduled s order by s.run_at, s.id limit cast(:most as integer)
),
size as (
  select case when c.reltuples >= 0 and c.relpages > 0 then c.reltuples / c.relpages else 150 end
         * (pg_relation_size(c.oid) / current_setting('block_size')::integer) as rows
    from pg_class c where c.oid = cast('deadsure.scheduled' as regclass)
)
select case when t.queue in (select queue from known) then t.queue else 'other' end,
       cast(count(*) * case when (select count(*) from first) < cast(:most as integer) then 1
                            else greatest(1, (select rows from size) / cast(:most as integer)) end as bigint)
  from first f join deadsure.tasks t on t.id = f.id
 group by 1;

-- name: figures_held
-- What runs and what is unknown, by queue: how many, and since how many seconds the oldest. Runs are found through the
-- slots that are open, the unknown ones through their own table; at most :most of these.
with known as (
  select k.queue from deadsure.kinds k union select unnest(cast(:queues as text[]))
),
held as (
  select t.queue, 'running' as state, t.started_at as since
    from deadsure.incarnations i
    join deadsure.slots s on s.incarnation = i.incarnation and not s.ended
    join deadsure.tasks t on t.id = any(s.task_ids) and t.owner = s.slot and t.state = 'running'
   where i.ended_at is null
   union all
  select t.queue, 'unknown', u.since
    from (select n.id, n.since from deadsure.unknowns n order by n.since limit cast(:most as integer)) u
    join deadsure.tasks t on t.id = u.id and t.state = 'unknown'
)
select case when h.queue in (select queue from known) then h.queue else 'other' end, h.state, count(*),
       cast(extract(epoch from clock_timestamp() - min(h.since)) as double precision)
  from held h
 group by 1, 2;

-- name: figures_unknown
-- Unknown tasks by kind and by what they need: how many, and since how many seconds the oldest.
select u.kind, u.needs, count(*), cast(extract(epoch from clock_timestamp() - min(u.since)) as double precision)
  from deadsure.unknowns u
 group by 1, 2
 order by 3 desc
 limit 1000;

-- name: figures_transaction
-- Seconds since the beginning of the oldest transaction that can keep vacuum from removing dead rows here: of a session
-- that holds a snapshot or has written, or a prepared one. Null: there is none that this role may see.
select cast(extract(epoch from clock_timestamp() - min(o.began)) as double precision)
  from (select a.xact_start as began from pg_stat_activity a
         where a.pid <> pg_backend_pid() and (a.backend_xmin is not null or a.backend_xid is not null)
           and (a.datname = current_database() or a.datname is null) and a.backend_type <> 'autovacuum worker'
         union all
        select p.prepared from pg_prepared_xacts p where p.database = current_database()) o;

-- name: figures_dead
-- Dead rows by table, as the statistics collector estimates them.
select s.relname, s.n_dead_tup from pg_stat_user_tables s
 where s.schemaname = 'deadsure' and s.relname = any(cast(:tables as text[]));
