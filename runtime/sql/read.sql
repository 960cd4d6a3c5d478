-- name: tasks
-- Tasks as the API shows them, by their ids. A missing row: there is no such task.
select t.id, t.kind, t.queue, t.priority, t.state, cast(t.payload as text) as payload, cast(t.result as text) as result,
       t.failure_reason, t.cancel_requested, t.attempts, t.max_attempts, t.timeout, t.fence, t.version,
       t.created_at, t.run_at, t.started_at, t.finished_at,
       t.unknown_since, t.unknown_cause, t.unknown_proof, t.unknown_signal, t.unknown_phase, t.unknown_needs,
       t.provider, t.effect_key, t.fingerprint, cast(t.receipt as text) as receipt
  from deadsure.tasks t
 where t.id = any(cast(:ids as uuid[]));

-- name: ping
-- Answers that the database answers.
select 1;
