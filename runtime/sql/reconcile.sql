-- name: claim_lookup
-- Takes one unknown task whose time for a lookup has come, for a short hold: others pass it by until then. Only for a
-- worker whose slot and lease are valid. No row: nothing is due.
with due as (
  select u.id from deadsure.unknowns u
   where u.needs = 'lookup' and u.lookup_at <= clock_timestamp() and u.kind = any(cast(:kinds as text[]))
     and exists (select 1 from deadsure.slots s join deadsure.incarnations i on i.incarnation = s.incarnation
                  where s.slot = cast(:slot as uuid) and not s.ended and i.lease_until > clock_timestamp())
   order by u.lookup_at limit 1 for update skip locked
),
held as (
  update deadsure.unknowns u
     set lookup_at = clock_timestamp() + make_interval(secs => cast(:hold as double precision)), lookups = u.lookups + 1
    from due where u.id = due.id
  returning u.id, u.lookups
)
select t.id, t.kind, t.fence, t.attempts, cast(t.payload as text), t.effect_key, cast(t.intent as text), t.request,
       t.provider_identity, clock_timestamp() as started, h.lookups
  from held h join deadsure.tasks t on t.id = h.id
 where t.state = 'unknown';

-- name: reconcile_found
-- The provider has shown a receipt that was verified against the stored intent: succeeded, cancel request or not.
-- No row: the task has moved on since (the fence, or the state, is another).
with done as (
  update deadsure.tasks t
     set state = 'succeeded', result = cast(:result as jsonb), receipt = cast(:receipt as jsonb),
         finished_at = clock_timestamp(), version = t.version + 1, unsettled = false,
         unknown_since = null, unknown_cause = null, unknown_needs = null, unknown_proof = null,
         unknown_signal = null, unknown_phase = null
   where t.id = cast(:id as uuid) and t.state = 'unknown' and t.fence = cast(:fence as bigint)
  returning t.id, t.state, t.fence
),
settled as (delete from deadsure.unknowns u using done where u.id = done.id),
told as (
  insert into deadsure.events (task_id, event, detail)
  select id, 'reconciled', jsonb_build_object('lookup', 'found', 'to', state, 'fence', fence,
           'number', cast(:number as integer)) from done
)
select state from done;

-- name: reconcile_absent
-- The provider said with authority that it has not done it (or, with :dedups and without :lookup, it is simply asked
-- again under the same key). Queued again only: without a cancel request, with budget left, while the key is
-- remembered, and if the provider dedups; or by lookup alone if whoever sent it is surely gone and what it sent had
-- settled BEFORE the lookup started. Else it stays unknown and needs a decision, or another lookup later.
-- No row: the task has moved on since. Else the verdict: queued, later, decision, retention_passed.
with hand as (
  select t.id, clock_timestamp() as now, t.cancel_requested, t.attempts, t.max_attempts, t.first_perform_at,
         t.sender_gone_at
    from deadsure.tasks t
   where t.id = cast(:id as uuid) and t.state = 'unknown' and t.fence = cast(:fence as bigint)
     for update
),
verdict as (
  select h.*, h.sender_gone_at + make_interval(secs => cast(:settle_after as double precision)) as settled_at,
         case when h.cancel_requested or h.attempts >= h.max_attempts then 'decision'
              when h.first_perform_at + make_interval(secs => cast(:retention as double precision)) <= h.now
                then 'retention_passed'
              when cast(:dedups as boolean) then 'queued'
              when not cast(:lookup as boolean) or h.sender_gone_at is null then 'decision'
              when h.sender_gone_at + make_interval(secs => cast(:settle_after as double precision))
                   <= cast(:started as timestamptz) then 'queued'
              else 'later' end as verdict
    from hand h
),
written as (
  update deadsure.tasks t
     set state = case when v.verdict = 'queued' then 'queued' else 'unknown' end,
         run_at = case when v.verdict = 'queued' then v.now else t.run_at end,
         version = t.version + 1,
         -- By lookup alone it is now known that nothing was done and nothing can arrive any more.
         unsettled = t.unsettled and (v.verdict <> 'queued' or cast(:dedups as boolean)),
         unknown_since = case when v.verdict <> 'queued' then t.unknown_since end,
         unknown_cause = case v.verdict when 'queued' then null when 'retention_passed' then 'retention_passed'
                                        else t.unknown_cause end,
         unknown_needs = case v.verdict when 'queued' then null when 'later' then 'lookup' else 'decision' end,
         unknown_proof = case when v.verdict <> 'queued' then t.unknown_proof end,
         unknown_signal = case when v.verdict <> 'queued' then t.unknown_signal end,
         unknown_phase = case when v.verdict <> 'queued' then t.unknown_phase end
    from verdict v
   where t.id = v.id
  returning t.id, t.kind, t.queue, t.priority, t.run_at, t.state, t.fence, v.verdict, v.settled_at
),
ready as (
  insert into deadsure.ready (queue, priority, run_at, id, kind)
  select queue, priority, run_at, id, kind from written where state = 'queued'
),
settled as (delete from deadsure.unknowns u using written w where u.id = w.id and w.state = 'queued'),
waits as (
  update deadsure.unknowns u
     set needs = case when w.verdict = 'later' then 'lookup' else 'decision' end,
         lookup_at = case when w.verdict = 'later' then w.settled_at else u.lookup_at end
    from written w where u.id = w.id and w.state = 'unknown'
),
told as (
  insert into deadsure.events (task_id, event, detail)
  select id, 'reconciled', jsonb_build_object(
           'lookup', case when cast(:lookup as boolean) then 'absent' else 'not offered' end,
           'verdict', verdict, 'to', state, 'fence', fence, 'number', cast(:number as integer))
    from written
)
select verdict from written;

-- name: reconcile_mismatch
-- The provider has shown a receipt that is not for this intent: nothing is completed, it is kept as evidence, and a
-- person has to look. No row: the task has moved on since.
with written as (
  update deadsure.tasks t set unknown_cause = 'receipt_mismatch', unknown_needs = 'decision', version = t.version + 1
   where t.id = cast(:id as uuid) and t.state = 'unknown' and t.fence = cast(:fence as bigint)
  returning t.id, t.fence
),
waits as (update deadsure.unknowns u set needs = 'decision' from written w where u.id = w.id),
told as (
  insert into deadsure.events (task_id, event, detail)
  select id, 'receipt_mismatch', jsonb_build_object('why', cast(:why as text), 'receipt', cast(:receipt as jsonb),
           'door', 'reconcile', 'fence', fence, 'number', cast(:number as integer)) from written
)
select id from written;

-- name: reconcile_unavailable
-- The provider could not say: ask again after :delay seconds. No row: the task has moved on since.
update deadsure.unknowns u
   set lookup_at = clock_timestamp() + make_interval(secs => cast(:delay as double precision))
  from deadsure.tasks t
 where u.id = cast(:id as uuid) and t.id = u.id and t.state = 'unknown' and t.fence = cast(:fence as bigint)
returning u.id;

-- name: ask_now
-- Somebody wants an unknown task looked up now. Answers: its state, and whether its provider offers a way out; null
-- for no such task. The task is locked first, as by all who settle it: the other way round the two could wait for each
-- other.
with t as (
  select t.id, t.state, t.unknown_needs,
         coalesce(k.contract ->> 'lookup' = 'true' or k.contract ->> 'dedups_by_key' = 'true', false) as can
    from deadsure.tasks t left join deadsure.kinds k on k.kind = t.kind
   where t.id = cast(:id as uuid)
     for update of t
),
asked as (
  update deadsure.unknowns u set needs = 'lookup', lookup_at = clock_timestamp()
    from t where u.id = t.id and t.state = 'unknown' and t.can
  returning u.id
),
noted as (
  -- By what the lock has shown: the row's own column, in this statement's snapshot, may be older.
  update deadsure.tasks k set unknown_needs = 'lookup', version = k.version + 1
    from asked a join t on t.id = a.id where k.id = a.id and t.unknown_needs <> 'lookup'
)
select t.state, t.can from t;

-- name: resolve
-- A person's decision about an unknown task, with its audit row in the same transaction. The version the person saw is
-- compared first, then the state. A repeat of the same decision changes nothing: the task is not unknown any more.
-- Answers: whether there is such a task, whether it was decided now, its version and state before, and its kind.
with hand as (
  select t.* from deadsure.tasks t where t.id = cast(:id as uuid) for update
),
decided as (
  insert into deadsure.decisions (decision, task_id, actor, evidence, decided, result, before)
  select cast(:decision as uuid), h.id, cast(:actor as text), cast(:evidence as text), cast(:state as text),
         cast(:result as jsonb), jsonb_build_object(
           'state', h.state, 'version', h.version, 'fence', h.fence, 'attempts', h.attempts, 'cause', h.unknown_cause,
           'needs', h.unknown_needs, 'since', h.unknown_since, 'proof', h.unknown_proof,
           'cancel_requested', h.cancel_requested, 'unsettled', h.unsettled, 'effect_key', h.effect_key,
           'fingerprint', h.fingerprint, 'provider', h.provider)
    from hand h
   where h.version = cast(:version as bigint) and h.state = 'unknown'
  returning decision
),
written as (
  update deadsure.tasks t
     set state = cast(:state as text), finished_at = clock_timestamp(), version = t.version + 1, unsettled = false,
         result = case when cast(:state as text) = 'succeeded' then coalesce(cast(:result as jsonb), 'null') end,
         failure_reason = case when cast(:state as text) = 'failed' then
           'resolved as failed by ' || cast(:actor as text) || ': ' || cast(:evidence as text) end,
         unknown_since = null, unknown_cause = null, unknown_needs = null, unknown_proof = null,
         unknown_signal = null, unknown_phase = null
    from decided d
   where t.id = cast(:id as uuid)
  returning t.id, t.fence
),
settled as (delete from deadsure.unknowns u using written w where u.id = w.id),
told as (
  insert into deadsure.events (task_id, event, detail)
  select id, 'resolved', jsonb_build_object('actor', cast(:actor as text), 'evidence', cast(:evidence as text),
           'decision', cast(:decision as uuid), 'to', cast(:state as text), 'fence', fence) from written
)
select exists (select 1 from hand) as there, exists (select 1 from decided) as decided,
       (select version from hand) as version, (select state from hand) as state, (select kind from hand) as kind;

-- name: decision
-- Whether this very decision was taken before, by a request whose answer was lost: null when its id stands for another
-- one. No row: it was not. A statement of its own, because that request may have ended while `resolve` waited for it.
select case when d.task_id = cast(:id as uuid) and d.decided = cast(:state as text)
             and d.evidence = cast(:evidence as text) and d.actor = cast(:actor as text)
             and d.result is not distinct from cast(:result as jsonb)
            then true end
  from deadsure.decisions d where d.decision = cast(:decision as uuid);
