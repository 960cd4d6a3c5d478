-- name: server_facts
-- What `deadsure doctor` tells people about the server and about who we are to it. Changes nothing.
-- The last column: may this role read and write tasks? Null: there is no such table yet.
select current_setting('server_version'), clock_timestamp(), cast(current_user as text),
       (select r.rolsuper from pg_roles r where r.rolname = current_user),
       has_table_privilege(to_regclass('deadsure.tasks'), 'select')
         and has_table_privilege(to_regclass('deadsure.tasks'), 'insert')
         and has_table_privilege(to_regclass('deadsure.tasks'), 'update');
