-- name: server_facts
-- What `deadsure doctor` tells people about the server and about who we are to it. Changes nothing.
select current_setting('server_version'), clock_timestamp(), cast(current_user as text),
       (select r.rolsuper from pg_roles r where r.rolname = current_user);

-- name: rights
-- Whether this role has each of these privileges, on the table of the same place in the list, or the function, whose
-- name ends with `()`. Changes nothing. Null: there is none. The schema's own right is asked for with it: without that
-- no other is of use.
select has_schema_privilege(n.oid, 'usage')
       and coalesce(has_table_privilege(c.oid, w.privilege), has_function_privilege(p.oid, w.privilege))
  from unnest(cast(:tables as text[]), cast(:privileges as text[])) with ordinality as w(name, privilege, number)
  left join pg_namespace n on n.nspname = 'deadsure'
  left join pg_class c on c.relnamespace = n.oid and c.relname = w.name
  left join pg_proc p on p.pronamespace = n.oid and p.proname || '()' = w.name
 order by w.number;
