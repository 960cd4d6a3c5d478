-- The whole schema. One page to hold in the head:
--
--   tasks         the truth about every task; wide, updated in place
--   ready         what may run now: narrow, keyed in the order in which it is claimed
--   scheduled     what may run later, by time; promoted into ready
--   unknowns      what may or may not have happened, and what would settle it
--   kinds         what the workers have said about the kinds they can run
--   incarnations  one row per boot of a supervisor, with its lease
--   slots         one row per forked worker: what it holds, and the token of its next statement
--   events        what happened to a task outside the normal path
--   decisions     what a person decided about an unknown task, and on which evidence; only ever added to
--
-- No index on tasks contains a column that a claim or a finish changes, also not in its WHERE: so each of these
-- updates stays inside its page (HOT). That is why ready, scheduled and unknowns are tables and not partial indexes.
-- Lock order, everywhere: incarnation, slot (by id), task. Rows of ready, scheduled and unknowns are only ever taken
-- with SKIP LOCKED.

create table deadsure.kinds (
  kind          text primary key check (length(kind) between 1 and 200),
  on_death      text not null check (on_death in ('unknown', 'fail', 'requeue')),
  effect        boolean not null default false,
  provider      text,
  contract      jsonb,
  max_attempts  integer not null check (max_attempts >= 1),
  timeout       double precision check (timeout > 0),
  queue         text not null check (length(queue) between 1 and 200),
  priority      integer not null,
  registered_at timestamptz not null default clock_timestamp(),
  check (not effect or provider is not null)
);

-- What holds in every row of tasks, whoever writes it; the error carries the name of the rule that would be broken.
-- It is one function because PostgreSQL reads the text of each CHECK anew in every statement: as nineteen CHECKs these
-- rules were a third of the work of a claim. A rule that is null is not broken.
create function deadsure.keeps_the_rules(
  queue text, state text, on_death text, attempts integer, max_attempts integer, timeout double precision,
  idempotency_key text, owner uuid, finished_at timestamptz, has_result boolean, has_reason boolean, unsettled boolean,
  unknown_since timestamptz, unknown_cause text, unknown_proof text, unknown_needs text
) returns boolean language plpgsql immutable parallel safe as $$
declare
  broken text := case
    when state not in ('queued', 'running', 'unknown', 'succeeded', 'failed', 'canceled') then 'state_is_known'
    when on_death not in ('unknown', 'fail', 'requeue') then 'on_death_is_known'
    when (state = 'succeeded') <> has_result then 'result_only_if_succeeded'
    when (state in ('succeeded', 'failed', 'canceled')) <> (finished_at is not null) then 'finished_only_if_terminal'
    when (state = 'running') <> (owner is not null) then 'owner_only_while_running'
    when attempts not between 0 and max_attempts then 'attempts_within_budget'
    when max_attempts < 1 then 'budget_of_at_least_one'
    -- Else a spent task at the head of the queue would stop every claim.
    when state = 'queued' and attempts >= max_attempts then 'queued_has_budget_left'
    when state = 'failed' and not has_reason then 'failed_has_a_reason'
    when (state = 'unknown') <> (unknown_cause is not null) then 'unknown_has_a_cause'
    when (unknown_cause is null) <> (unknown_since is null) or (unknown_cause is null) <> (unknown_needs is null)
      then 'unknown_is_whole'
    when unknown_cause not in ('worker_died', 'lease_expired', 'ambiguous_answer', 'receipt_mismatch', 'timeout',
                               'shutdown', 'unsettled_attempt', 'retention_passed', 'provider_changed')
      or unknown_proof not in ('exit', 'pool_lock', 'lease') or unknown_needs not in ('lookup', 'decision')
      then 'evidence_is_known'
    when unsettled and state not in ('queued', 'running', 'unknown') then 'unsettled_is_not_over'
    when not (timeout > 0 and timeout < 1e9) then 'timeout_is_positive'  -- also NaN and infinity
    when length(queue) not between 1 and 200 then 'queue_has_a_name'
    when length(idempotency_key) not between 1 and 255 then 'key_is_short'
  end;
begin
  if broken is not null then
    raise check_violation using
      message = format('a task would break the rule %I', broken),
      detail = format('state %s, attempts %s of %s, on_death %s', state, attempts, max_attempts, on_death),
      schema = 'deadsure', table = 'tasks', constraint = broken;
  end if;
  return true;
end $$;

create table deadsure.tasks (
  id                uuid primary key,
  kind              text not null,
  queue             text not null,
  priority          integer not null,
  state             text not null default 'queued',
  on_death          text not null,
  attempts          integer not null default 0,
  max_attempts      integer not null,
  timeout           double precision,
  fence             bigint not null default 0,
  version           bigint not null default 1,
  owner             uuid,
  cancel_requested  boolean not null default false,
  created_at        timestamptz not null,
  run_at            timestamptz not null,
  started_at        timestamptz,
  finished_at       timestamptz,
  payload           jsonb not null,
  result            jsonb,
  failure_reason    text,
  -- Submitted under a key: the key, and what was asked for beside kind and payload, to compare a repeat with.
  idempotency_key   text,
  asked             jsonb,
  -- While unknown: why nobody can say, and the evidence.
  unknown_since     timestamptz,
  unknown_cause     text,
  unknown_proof     text,
  unknown_signal    text,
  unknown_phase     text,
  unknown_needs     text,
  -- The act outside the database, once it has been prepared.
  provider          text,
  provider_identity text,
  effect_key        text,
  intent            jsonb,
  fingerprint       text,
  request           bytea,
  -- Since when its key may be known there; which attempt performed last; whether a perform has no definite answer,
  -- and whether one of an earlier attempt has none; since when whoever sent it is surely gone.
  first_perform_at  timestamptz,
  perform_fence     bigint,
  unsettled         boolean not null default false,
  unsettled_earlier boolean not null default false,
  sender_gone_at    timestamptz,
  receipt           jsonb,

  constraint tasks_rules check (deadsure.keeps_the_rules(
    queue, state, on_death, attempts, max_attempts, timeout, idempotency_key, owner, finished_at, result is not null,
    failure_reason is not null, unsettled, unknown_since, unknown_cause, unknown_proof, unknown_needs))
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create unique index tasks_idempotency_key on deadsure.tasks (idempotency_key) where idempotency_key is not null;
create index tasks_kind_id on deadsure.tasks (kind, id);

create table deadsure.ready (
  queue     text not null,
  priority  integer not null,
  run_at    timestamptz not null,
  id        uuid not null,
  kind      text not null,
  batchable boolean not null default false,
  primary key (queue, priority, run_at, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_scale_factor = 0.2);

create table deadsure.scheduled (
  run_at timestamptz not null,
  id     uuid not null,
  primary key (run_at, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

create table deadsure.unknowns (
  id        uuid primary key,
  kind      text not null,
  provider  text,
  needs     text not null check (needs in ('lookup', 'decision')),
  since     timestamptz not null,
  lookup_at timestamptz,
  lookups   integer not null default 0,
  check (needs = 'decision' or lookup_at is not null)
);

create index unknowns_lookup_at on deadsure.unknowns (lookup_at) where needs = 'lookup';

create table deadsure.incarnations (
  incarnation uuid primary key,
  pool        text not null,
  token       bigint not null,
  lease_until timestamptz not null,
  started_at  timestamptz not null default clock_timestamp(),
  ended_at    timestamptz,
  ended_by    text check (ended_by in ('exit', 'pool_lock', 'lease')),
  -- The pool lock this incarnation holds. Only a lock file that agrees in all four proves its processes gone.
  lock_id     uuid not null,
  lock_device bigint not null,
  lock_inode  bigint not null,
  boot_id     text not null,
  -- For people only; nothing is decided by them.
  host        text not null,
  pid         integer not null,
  check ((ended_at is null) = (ended_by is null))
) with (fillfactor = 50);

create table deadsure.slots (
  slot        uuid primary key,
  incarnation uuid not null references deadsure.incarnations,
  number      integer not null,
  token       bigint not null,
  -- Every task the worker holds, and under which fence.
  task_ids    uuid[] not null default '{}',
  fences      bigint[] not null default '{}',
  ended       boolean not null default false,
  started_at  timestamptz not null default clock_timestamp(),
  check (cardinality(task_ids) = cardinality(fences))
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0);

create index slots_incarnation on deadsure.slots (incarnation);

create table deadsure.events (
  number  bigint generated always as identity primary key,
  task_id uuid not null,
  at      timestamptz not null default clock_timestamp(),
  event   text not null,
  detail  jsonb not null
);

create table deadsure.decisions (
  decision   uuid primary key,
  task_id    uuid not null,
  at         timestamptz not null default clock_timestamp(),
  actor      text not null check (length(actor) between 1 and 200),
  evidence   text not null check (length(btrim(evidence)) between 1 and 10000),
  decided    text not null check (decided in ('succeeded', 'failed', 'canceled')),
  result     jsonb,
  -- The task as it stood before, with everything that was known then.
  before     jsonb not null
);

create index decisions_task on deadsure.decisions (task_id);

create function deadsure.refuse_change() returns trigger language plpgsql set search_path = '' as $$
begin
  if current_setting('deadsure.pruning', true) = 'on' and tg_op = 'DELETE' then
    return old;
  end if;
  raise exception 'deadsure.% is only ever added to', tg_table_name using errcode = 'insufficient_privilege';
end $$;

create trigger decisions_are_kept before update or delete on deadsure.decisions
  for each row execute function deadsure.refuse_change();
create trigger decisions_are_not_truncated before truncate on deadsure.decisions
  for each statement execute function deadsure.refuse_change();

create index events_task on deadsure.events (task_id, number);
