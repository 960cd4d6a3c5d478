-- name: submit
-- Inserts queued tasks, each with its row in ready or scheduled; one array element per task. What the caller left null
-- comes from the kind. Answers with the tasks that were stored, as one JSON text: a hundred values and more are read
-- from that much faster than one by one. One that is missing was there already (same id or key), its kind is unknown, or
-- it asks for more attempts than its kind allows: `submitted` tells which.
-- The rows go in by key, then id: else two writers deadlock on the unique index.
with asked as (
  select a.*, clock_timestamp() as now
    from unnest(cast(:ids as uuid[]), cast(:kinds as text[]), cast(:payloads as text[]), cast(:queues as text[]),
                cast(:priorities as integer[]), cast(:run_ats as timestamptz[]), cast(:max_attempts as integer[]),
                cast(:timeouts as double precision[]), cast(:keys as text[]))
         as a(id, kind, payload, queue, priority, run_at, max_attempts, timeout, key)
),
stored as (
  insert into deadsure.tasks as t (id, kind, queue, priority, on_death, max_attempts, timeout, created_at, run_at,
                                   payload, idempotency_key, asked)
  select a.id, k.kind, coalesce(a.queue, k.queue), coalesce(a.priority, k.priority), k.on_death,
         coalesce(a.max_attempts, k.max_attempts), coalesce(a.timeout, k.timeout), a.now,
         coalesce(a.run_at, a.now), cast(a.payload as jsonb), a.key,
         case when a.key is not null then
           deadsure.asked(a.queue, a.priority, a.run_at, a.max_attempts, a.timeout) end
    from asked a join deadsure.kinds k on k.kind = a.kind
   where coalesce(a.max_attempts, k.max_attempts) between 1 and k.max_attempts
   order by a.key, a.id
  on conflict do nothing
  returning t.id, t.kind, t.queue, t.priority, t.state, t.on_death, cast(t.payload as text) as payload, t.result,
            t.failure_reason, t.cancel_requested, t.attempts, t.max_attempts, t.timeout, t.fence, t.version,
            t.created_at, t.run_at
),
now_ready as (
  insert into deadsure.ready (queue, priority, run_at, id, kind, batchable)
  select queue, priority, run_at, id, kind, on_death = 'requeue' and max_attempts >= 2
    from stored where run_at <= created_at
),
later as (
  insert into deadsure.scheduled (run_at, id) select run_at, id from stored where run_at > created_at
)
select cast(coalesce(json_agg(stored), '[]') as text) from stored;

-- name: submitted
-- For tasks that `submit` did not store, one row each, in the order asked: how many attempts the kind allows (null: it
-- is unknown); the id of the task that stands there under the same id or key, null for none; and whether it is the
-- same request. Changes nothing. A statement of its own, because the row in the way can be younger than the insert's
-- snapshot.
select k.max_attempts, t.id, t.same
  from unnest(cast(:ids as uuid[]), cast(:kinds as text[]), cast(:payloads as text[]), cast(:queues as text[]),
              cast(:priorities as integer[]), cast(:run_ats as timestamptz[]), cast(:max_attempts as integer[]),
              cast(:timeouts as double precision[]), cast(:keys as text[])) with ordinality
       as a(id, kind, payload, queue, priority, run_at, max_attempts, timeout, key, number)
  left join deadsure.kinds k on k.kind = a.kind
  left join lateral (
       select i.id, true as same from deadsure.tasks i where i.id = a.id
        union all
       select i.id, i.kind = a.kind and i.payload = cast(a.payload as jsonb)
                    and i.asked = deadsure.asked(a.queue, a.priority, a.run_at, a.max_attempts, a.timeout)
         from deadsure.tasks i where i.idempotency_key = a.key and i.id <> a.id
        limit 1) t on true
 order by a.number;

-- name: barrier
-- Returns when all that was visible before is as safe as a commit of one's own. What another session has committed can
-- be seen while it has not reached the synchronous standby: after a crash of the primary, or when somebody ended the
-- wait. To say that it is accepted, one waits oneself: this writes a few bytes of log, and no row.
select pg_logical_emit_message(true, 'deadsure', '');
