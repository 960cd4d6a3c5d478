-- name: stored_effect
-- What an earlier attempt prepared, to be performed again unchanged. Changes nothing. No row: the task is not this
-- worker's any more.
select cast(t.intent as text), t.request
  from deadsure.tasks t
 where t.id = cast(:id as uuid) and t.state = 'running' and t.fence = cast(:fence as bigint)
   and t.owner = cast(:slot as uuid);

-- name: before_call
-- The last check before a provider is called, and the note that it may have been: slot, state, fence and owner, the
-- lease by the database's clock, no cancel request; and while a perform of an earlier attempt has no definite answer,
-- the same provider and a key that it still remembers when the call ends. The first time it stores what is sent.
-- Answers in one row: mine (false: the slot has ended), the verdict (null: the task is not this worker's; else go,
-- canceled, untrusted, provider_changed, retention_passed), whether an earlier perform is unsettled, and for go what
-- to send and until when. :spot as in finish_and_claim. May be repeated: it changes nothing that it has not changed before.
with own as (
  select i.lease_until > clock_timestamp() as trusted
    from deadsure.slots s
    join deadsure.incarnations i on i.incarnation = s.incarnation
   where s.ctid = coalesce(cast(:spot as tid), (select o.ctid from deadsure.slots o where o.slot = cast(:slot as uuid)))
     and s.slot = cast(:slot as uuid) and not s.ended and s.token = cast(:token as bigint)
     for update of s
),
hand as (
  select t.id, clock_timestamp() as now, t.cancel_requested, t.provider_identity, t.first_perform_at,
         case when t.perform_fence = t.fence then t.unsettled_earlier else t.unsettled end as earlier
    from deadsure.tasks t
   where t.id = cast(:id as uuid) and t.state = 'running' and t.fence = cast(:fence as bigint)
     and t.owner = cast(:slot as uuid) and exists (select 1 from own)
     for update
),
verdict as (
  select h.*, case
           when h.cancel_requested then 'canceled'
           when not (select bool_or(trusted) from own) then 'untrusted'
           when h.earlier and h.provider_identity is distinct from cast(:identity as text) then 'provider_changed'
           when h.earlier and h.first_perform_at
                              + make_interval(secs => coalesce(cast(:retention as double precision), 0))
                              <= h.now + make_interval(secs => cast(:timeout as double precision))
             then 'retention_passed'
           else 'go' end as verdict
    from hand h
),
noted as (
  update deadsure.tasks t
     set intent = coalesce(t.intent, cast(:intent as jsonb)), request = coalesce(t.request, cast(:request as bytea)),
         fingerprint = coalesce(t.fingerprint, cast(:fingerprint as text)), effect_key = cast(:key as text),
         provider = cast(:provider as text), provider_identity = cast(:identity as text),
         -- A repeat, whose first copy can arrive as late as it likes, moves nothing.
         first_perform_at = case when v.earlier or t.perform_fence = t.fence then t.first_perform_at else v.now end,
         perform_fence = t.fence, unsettled = true, unsettled_earlier = v.earlier, sender_gone_at = null,
         version = t.version + 1
    from verdict v
   where t.id = v.id and v.verdict = 'go'
  returning cast(t.intent as text) as intent, t.request,
            v.now + make_interval(secs => cast(:timeout as double precision)) as not_after
)
select exists (select 1 from own) as mine, (select verdict from verdict) as verdict,
       coalesce((select earlier from verdict), false) as earlier, n.intent, n.request, n.not_after
  from (values (1)) one left join noted n on true;

-- name: finish_alone
-- Everything a finish can be beside the hot path's: an effect with its receipt, a retry, unknown. Guarded like the hot
-- statement and claims nothing; the slot gets its new token.
-- :definite says that this attempt's call, if there was one, has a definite answer. While any perform has none, the
-- task can only succeed, be tried again or become unknown: nothing is failed or canceled that may yet be done.
-- :kept and :kept_fences are what the slot holds beside it, and goes on holding.
-- Answers: mine, the new state (null: refused), why it is unknown, if it is, and where the slot's row is now.
with sought as (
  select coalesce(cast(:spot as tid), (select o.ctid from deadsure.slots o where o.slot = cast(:slot as uuid))) as spot
),
locked as (
  select s.ctid as spot from deadsure.slots s
   where s.ctid = (select spot from sought)
     and s.slot = cast(:slot as uuid) and not s.ended and s.token = cast(:token as bigint) for update
),
own as (
  -- As in finish_and_claim.
  select l.spot from locked l where l.spot = (select spot from sought)
),
hand as (
  select t.id, clock_timestamp() as now, t.cancel_requested, t.attempts, t.max_attempts,
         case when t.perform_fence is distinct from t.fence then t.unsettled
              when cast(:definite as boolean) then t.unsettled_earlier
              else true end as open
    from deadsure.tasks t
   where t.id = cast(:id as uuid) and t.state = 'running' and t.fence = cast(:fence as bigint)
     and t.owner = cast(:slot as uuid) and exists (select 1 from own)
     for update
),
verdict as (
  select h.*, case
           -- An effect has succeeded by its receipt and by nothing else.
           when cast(:outcome as text) = 'succeeded' and cast(:effect as boolean) and cast(:receipt as jsonb) is null
             then 'unknown'
           when cast(:outcome as text) in ('succeeded', 'unknown') then cast(:outcome as text)
           when cast(:outcome as text) = 'retry' and not h.cancel_requested and h.attempts < h.max_attempts
             then 'queued'
           when h.open then 'unknown'
           when h.cancel_requested and (cast(:outcome as text) = 'canceled'
                                        or cast(:outcome as text) = 'retry' and cast(:effect as boolean)) then 'canceled'
           else 'failed' end as state
    from hand h
),
fin as (
  update deadsure.tasks t
     set state = v.state, owner = null, version = t.version + 1,
         finished_at = case when v.state in ('succeeded', 'failed', 'canceled') then v.now end,
         result = case when v.state = 'succeeded' then cast(:result as jsonb) end,
         receipt = case when v.state = 'succeeded' then cast(:receipt as jsonb) else t.receipt end,
         failure_reason = case when v.state = 'failed' then
           coalesce(cast(:reason as text), 'raised Canceled, but no cancel was requested') end,
         run_at = case when v.state = 'queued' then
           v.now + make_interval(secs => cast(:delay as double precision)) else t.run_at end,
         unsettled = case when v.state = 'succeeded' then false else v.open end,
         unsettled_earlier = false,
         sender_gone_at = v.now,
         -- Nothing is open: the provider was never asked, or has answered. Its memory of the key starts with the next.
         first_perform_at = case when v.open or v.state = 'succeeded' then t.first_perform_at end,
         unknown_since = case when v.state = 'unknown' then v.now end,
         unknown_cause = case when v.state = 'unknown' then
           case when cast(:outcome as text) = 'unknown' then cast(:cause as text) else 'unsettled_attempt' end end,
         unknown_needs = case when v.state = 'unknown' then cast(:needs as text) end
    from verdict v
   where t.id = v.id
  returning t.id, t.kind, t.state, t.fence, t.attempts, t.run_at, t.provider, t.unknown_since, t.unknown_cause,
            t.unknown_needs
),
later as (
  insert into deadsure.scheduled (run_at, id) select run_at, id from fin where state = 'queued'
),
unknown as (
  insert into deadsure.unknowns (id, kind, provider, needs, since, lookup_at)
  select id, kind, provider, unknown_needs, unknown_since, unknown_since from fin where state = 'unknown'
),
told as (
  insert into deadsure.events (task_id, event, detail)
  select id, case when state = 'unknown' then 'unknown' else 'retry' end, jsonb_build_object(
           'to', state, 'cause', unknown_cause, 'reason', cast(:reason as text), 'fence', fence, 'attempt', attempts,
           'run_at', case when state = 'queued' then run_at end, 'receipt', cast(:receipt as jsonb))
    from fin where state in ('unknown', 'queued')
),
held as (
  update deadsure.slots s
     set task_ids = cast(:kept as uuid[]), fences = cast(:kept_fences as bigint[]), token = cast(:next_token as bigint)
   where s.ctid = (select spot from own) and s.slot = cast(:slot as uuid) and exists (select 1 from fin)
  returning s.ctid as spot
)
select exists (select 1 from own) as mine, (select state from fin) as finished,
       (select unknown_cause from fin) as cause, cast((select spot from held) as text) as spot;
