-- name: client_submit
-- For `deadsure.submit_many` on the caller's own DB-API connection, hence the placeholders of its `format` paramstyle.
-- One row per task: its place and its id. What it refuses is an error of the driver's, and then the caller's
-- transaction has failed. By key, because two transactions that use the same keys must take them in one order.
select a.number, deadsure.submit(a.kind, a.payload, a.key, a.queue, a.priority, a.run_at, a.max_attempts, a.timeout)
  from (select n.number, cast(%s as text) as kind, cast(n.payload as jsonb) as payload, n.key,
               cast(%s as text) as queue, cast(%s as integer) as priority, cast(%s as timestamptz) as run_at,
               cast(%s as integer) as max_attempts, cast(%s as double precision) as timeout
          from unnest(cast(%s as text[]), cast(%s as text[])) with ordinality as n(payload, key, number)
         order by n.key, n.number) a;
