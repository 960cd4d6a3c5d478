-- Who may do what in the schema deadsure. Five roles that nobody logs in as; give them to your logins:
--
--   deadsure_owner      owns the schema; for `deadsure migrate`, and for drills on a staging database
--   deadsure_runtime    supervisor, workers and api of `deadsure serve`: they share one DSN
--   deadsure_submitter  applications that submit inside their own transactions
--   deadsure_reader     people and their reports
--   deadsure_pruner     `deadsure prune`
--
-- Run it after the first `deadsure migrate`, and again after every later one, in the same database:
--
--   psql -v ON_ERROR_STOP=1 -f roles.sql DATABASE
--
-- as a superuser, or as the owner of the schema with CREATEROLE. It may be repeated, and beside running pools: what is
-- granted already stays granted. Then, for instance:
--
--   create role shop_pool login password '...' in role deadsure_runtime;
--   create role shop_migrate login password '...' in role deadsure_owner;
--   alter role shop_migrate set role = deadsure_owner;   -- so that what it makes belongs to deadsure_owner

begin;
set local lock_timeout = '5s';
select pg_advisory_xact_lock(hashtextextended('deadsure roles', 0));

do $$
declare
  name text;
begin
  if to_regclass('deadsure.migrations') is null then
    raise exception 'there is no schema deadsure here yet: run deadsure migrate first';
  end if;
  foreach name in array array['deadsure_owner', 'deadsure_runtime', 'deadsure_submitter', 'deadsure_reader',
                              'deadsure_pruner'] loop
    if not exists (select from pg_roles where rolname = name) then
      execute format('create role %I nologin', name);
    end if;
  end loop;
  -- Who is no superuser can give things away only to a role of its own.
  if not pg_has_role('deadsure_owner', 'usage') then
    execute format('grant deadsure_owner to %I', current_user);
  end if;
end $$;

-- Everything belongs to deadsure_owner. Only what does not yet is changed: that takes a lock for a moment.
do $$
declare
  text text;
begin
  for text in
    select format('alter schema %I owner to deadsure_owner', n.nspname)
      from pg_namespace n where n.nspname = 'deadsure' and n.nspowner <> 'deadsure_owner'::regrole
     union all
    select format('alter table %s owner to deadsure_owner', c.oid::regclass)
      from pg_class c
     where c.relnamespace = 'deadsure'::regnamespace and c.relkind in ('r', 'p', 'v')
       and c.relowner <> 'deadsure_owner'::regrole
     union all
    select format('alter function %s owner to deadsure_owner', p.oid::regprocedure)
      from pg_proc p
     where p.pronamespace = 'deadsure'::regnamespace and p.proowner <> 'deadsure_owner'::regrole
  loop
    execute text;
  end loop;
end $$;

-- Nothing by default, also of what later migrations make; then what each of them needs.
alter default privileges for role deadsure_owner revoke execute on functions from public;
revoke all on schema deadsure from public, deadsure_runtime, deadsure_submitter, deadsure_reader, deadsure_pruner;
revoke all on all tables in schema deadsure
  from public, deadsure_runtime, deadsure_submitter, deadsure_reader, deadsure_pruner;
revoke all on all functions in schema deadsure
  from public, deadsure_runtime, deadsure_submitter, deadsure_reader, deadsure_pruner;
grant usage on schema deadsure to deadsure_runtime, deadsure_submitter, deadsure_reader, deadsure_pruner;
grant select on deadsure.migrations to deadsure_runtime, deadsure_reader, deadsure_pruner;

-- A pool. It adds events and decisions and can never change or remove one; it removes no task.
grant select, insert, update on deadsure.kinds, deadsure.tasks, deadsure.incarnations, deadsure.slots
  to deadsure_runtime;
grant select, insert, update, delete on deadsure.ready, deadsure.scheduled, deadsure.unknowns to deadsure_runtime;
grant select, insert on deadsure.events, deadsure.decisions to deadsure_runtime;
grant execute on function deadsure.asked(text, integer, timestamptz, integer, double precision) to deadsure_runtime;
-- Whoever writes a row of tasks runs its rules.
grant execute on function deadsure.keeps_the_rules(text, text, text, integer, integer, double precision, text, uuid,
  timestamptz, boolean, boolean, boolean, timestamptz, text, text, text) to deadsure_runtime;

-- Submitting, and nothing else: no task can be read, not even the own one.
grant execute on function
  deadsure.submit(text, jsonb, text, text, integer, timestamptz, integer, double precision) to deadsure_submitter;

-- Reading what people read. Payloads, results and evidence are among it.
grant select on deadsure.tasks_view, deadsure.unknown_view, deadsure.events, deadsure.decisions, deadsure.kinds,
  deadsure.incarnations, deadsure.slots, deadsure.ready, deadsure.scheduled to deadsure_reader;

-- Removing. A row that is to be locked asks for the right to update one column, whichever: these decide nothing.
grant select, delete on deadsure.tasks, deadsure.events, deadsure.decisions, deadsure.ready, deadsure.slots,
  deadsure.incarnations to deadsure_pruner;
grant select on deadsure.scheduled to deadsure_pruner;
grant update (version) on deadsure.tasks to deadsure_pruner;
grant update (batchable) on deadsure.ready to deadsure_pruner;
grant update (number) on deadsure.slots to deadsure_pruner;
grant update (host) on deadsure.incarnations to deadsure_pruner;

commit;
