-- name: left_behind
-- Of these sessions of ours, which were given up in the middle of a statement, ends those that are still there, but not
-- one that waits for a synchronous standby: it has committed, and whoever ends it shows what may still be lost. Answers
-- with those that it left alone. The CTE is materialized, so that nobody else's session can ever be among them.
with there as materialized (
  select o.pid, o.started, a.wait_event is not distinct from 'SyncRep' as commits
    from unnest(cast(:pids as integer[]), cast(:starts as timestamptz[])) as o(pid, started)
    join pg_stat_activity a on a.pid = o.pid and a.backend_start = o.started
)
select t.pid, cast(t.started as text) from there t
 where case when t.commits then true else not pg_terminate_backend(t.pid) end;
