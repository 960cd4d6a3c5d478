-- Views for people and their reports. Their columns are kept; the tables behind them may change.

create view deadsure.tasks_view as
select t.id, t.kind, t.queue, t.priority, t.state, t.payload, t.result, t.failure_reason, t.cancel_requested, t.attempts,
       t.max_attempts, t.timeout, t.fence, t.idempotency_key, t.created_at, t.run_at, t.started_at, t.finished_at
  from deadsure.tasks t;

create view deadsure.unknown_view as
select t.id, t.kind, t.queue, t.unknown_since as since, t.unknown_cause as cause, t.unknown_needs as needs,
       t.unknown_proof as proof, t.unknown_signal as signal, t.unknown_phase as phase, t.cancel_requested, t.attempts,
       t.max_attempts, coalesce(t.provider, k.provider) as provider, t.effect_key, t.fingerprint, t.payload,
       u.lookups, case when u.needs = 'lookup' then u.lookup_at end as next_lookup_at
  from deadsure.unknowns u
  join deadsure.tasks t on t.id = u.id
  left join deadsure.kinds k on k.kind = t.kind
 where t.state = 'unknown';
