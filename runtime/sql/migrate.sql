-- name: lock_schema
-- One migration at a time; the lock goes with the transaction. Taken before anything is created, because even
-- CREATE ... IF NOT EXISTS fails when two sessions run it at once.
select pg_advisory_xact_lock(cast(:key as bigint));

-- name: schema_exists
-- Whether any migration was ever applied here. Changes nothing.
select to_regclass('deadsure.migrations') is not null;

-- name: create_schema
-- Only under the lock of lock_schema, in the transaction of the first migration.
create schema if not exists deadsure;

-- name: create_migrations
-- Which migrations were applied, and with which text. Only under the lock of lock_schema.
create table deadsure.migrations (
  number     integer primary key,
  name       text not null,
  checksum   text not null,
  applied_at timestamptz not null default clock_timestamp()
);

-- name: applied_migrations
-- What was applied, in order. Changes nothing. No row: nothing yet.
select m.number, m.name, m.checksum from deadsure.migrations m order by m.number;

-- name: note_migration
-- Notes one migration, in the transaction that applied it.
insert into deadsure.migrations (number, name, checksum)
values (cast(:number as integer), cast(:name as text), cast(:checksum as text));
