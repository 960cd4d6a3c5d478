-- After a backup was restored, or a standby without the last commits was promoted: what was `queued` then may have been
-- done since, and nobody here knows. This makes it `unknown`, so that its provider is asked, or a person, before
-- anything is done again. docs/operations.md explains it.
--
-- Stop every pool of the lost database first, and be sure that none of its processes lives. Then, before any pool is
-- started on this one, as its owner:
--
--   psql -v ON_ERROR_STOP=1 -f after_restore.sql "dbname=DATABASE options='-c deadsure.restored_to=2026-11-30T10:15:00Z'"
--
-- deadsure.restored_to is the moment to which the database went back, or an earlier one. deadsure.rerun may name kinds,
-- with commas between, of which a second run does no harm; kinds declared `requeue` are such kinds anyway.

begin;

do $$
begin
  if coalesce(current_setting('deadsure.restored_to', true), '') = '' then
    raise exception 'say to which moment the database went back: options=''-c deadsure.restored_to=...''';
  end if;
  if cast(current_setting('deadsure.restored_to') as timestamptz) > clock_timestamp() then
    raise exception 'deadsure.restored_to lies in the future';
  end if;
  if exists (select from deadsure.incarnations where ended_at is null and lease_until > clock_timestamp()) then
    raise exception 'a supervisor still has a lease here: stop every pool, and wait until it is over';
  end if;
end $$;

-- Attempts after that moment had higher fences, and a provider may have seen them; and clients may have seen later
-- versions. Both go well beyond. A provider may know a key since that moment at the earliest, and nothing can be sent
-- any more by those who knew the lost database.
update deadsure.tasks t
   set fence = t.fence + 1000, version = t.version + 1000,
       first_perform_at = coalesce(t.first_perform_at, cast(current_setting('deadsure.restored_to') as timestamptz)),
       sender_gone_at = case when t.state = 'running' then t.sender_gone_at else clock_timestamp() end
 where t.state in ('queued', 'running', 'unknown');

-- What was due may have been done. What is still due later, and what may be run twice, waits as before.
create temporary table doubtful on commit drop as
select t.id, k.provider,
       case when k.contract ->> 'lookup' = 'true' or k.contract ->> 'dedups_by_key' = 'true' then 'lookup'
            else 'decision' end as needs
  from deadsure.tasks t
  left join deadsure.kinds k on k.kind = t.kind
 where t.state = 'queued' and t.on_death <> 'requeue' and t.run_at <= clock_timestamp()
   and t.kind <> all(string_to_array(coalesce(current_setting('deadsure.rerun', true), ''), ','));

delete from deadsure.ready r using doubtful d where r.id = d.id;
delete from deadsure.scheduled s using doubtful d where s.id = d.id;

update deadsure.tasks t
   set state = 'unknown', unknown_since = clock_timestamp(), unknown_cause = 'unsettled_attempt',
       unknown_needs = d.needs
  from doubtful d where t.id = d.id;

insert into deadsure.unknowns (id, kind, provider, needs, since, lookup_at)
select t.id, t.kind, d.provider, d.needs, t.unknown_since, t.unknown_since
  from doubtful d join deadsure.tasks t on t.id = d.id;

insert into deadsure.events (task_id, event, detail)
select d.id, 'restored', jsonb_build_object('to', 'unknown', 'moment', current_setting('deadsure.restored_to'))
  from doubtful d;

-- What is unknown now, and what will settle it.
select t.kind, t.unknown_needs as needs, count(*) from deadsure.tasks t
 where t.state = 'unknown' group by t.kind, t.unknown_needs order by t.kind, t.unknown_needs;

commit;
