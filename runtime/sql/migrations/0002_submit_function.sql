-- Submit from any language, inside the caller's own transaction: deadsure.submit(kind, payload, ...).

-- A new task id (RFC 9562, UUIDv7): the time in milliseconds over the first 48 bits of a random UUID, whose version
-- bits 0100 become 0111.
create function deadsure.new_task_id() returns uuid language sql volatile set search_path = '' as $$
  select cast(pg_catalog.encode(pg_catalog.set_bit(pg_catalog.set_bit(
           overlay(pg_catalog.uuid_send(pg_catalog.gen_random_uuid())
                   placing substring(pg_catalog.int8send(cast(extract(epoch from pg_catalog.clock_timestamp()) * 1000
                                                              as bigint)) from 3) from 1 for 6),
           52, 1), 53, 1), 'hex') as uuid)
$$;

-- What a repeat under the same idempotency key must also have asked for, beside kind and payload. The one form in
-- which every door of submit stores it and compares it.
create function deadsure.asked(queue text, priority integer, run_at timestamptz, max_attempts integer,
                               timeout double precision) returns jsonb language sql stable as $$
  select jsonb_build_array(queue, priority, extract(epoch from run_at), max_attempts, timeout)
$$;

-- Stores one queued task and returns its id; it is there when the caller's transaction commits. A null means the
-- kind's own default. With a key that was used before: the same request returns the task that stands there, another
-- one is an error (unique_violation). An unknown kind, and a value that no task can have, is an error
-- (invalid_parameter_value). It runs with its owner's rights, so that a caller needs no right on any table.
create function deadsure.submit(kind text, payload jsonb, key text default null, queue text default null,
                                priority integer default null, run_at timestamptz default null,
                                max_attempts integer default null, timeout double precision default null)
returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  declared deadsure.kinds;
  task     deadsure.tasks;
  made     uuid := deadsure.new_task_id();
  now      timestamptz := clock_timestamp();
  -- Control characters, spaces other than the space, what is invisible or private: what every other door refuses.
  unprintable constant text := '\u0001-\u001f\u007f-\u00a0\u00ad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f'
    || '\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb';
begin
  select k.* into declared from deadsure.kinds k where k.kind = submit.kind;
  if not found then
    raise exception 'no worker has registered the kind %; nothing was stored', quote_nullable(submit.kind)
      using errcode = 'invalid_parameter_value';
  end if;
  if submit.payload is null then
    raise exception 'the payload is null (for the JSON null pass ''null'')' using errcode = 'invalid_parameter_value';
  end if;
  if jsonb_path_exists(submit.payload, 'strict $.**{100} ? (@.type() == "array" || @.type() == "object")') then
    raise exception 'lists and objects in the payload nest deeper than 100' using errcode = 'invalid_parameter_value';
  end if;
  if jsonb_path_exists(submit.payload, 'strict $.** ? (@.type() == "number" && @.abs() >= 1e4300)') then
    raise exception 'a number in the payload has more than 4300 digits before its point: a handler could not read it'
      using errcode = 'invalid_parameter_value';
  end if;
  if length(submit.queue) not between 1 and 200 or submit.queue ~ ('^ | $|[' || unprintable || ']') then
    raise exception 'the queue must be 1 to 200 printable characters, without spaces around them'
      using errcode = 'invalid_parameter_value';
  end if;
  if submit.max_attempts not between 1 and declared.max_attempts then
    raise exception 'max_attempts must be from 1 to %, the number of kind %', declared.max_attempts,
      quote_literal(submit.kind) using errcode = 'invalid_parameter_value';
  end if;
  if submit.key !~ '^[!-~]{1,255}$' then
    raise exception 'the key must be 1 to 255 visible ASCII characters' using errcode = 'invalid_parameter_value';
  end if;
  if submit.timeout <= 0 or submit.timeout >= 1e9 then
    raise exception 'timeout must be a positive number of seconds' using errcode = 'invalid_parameter_value';
  end if;
  if submit.run_at < '0001-01-01T00:00:00Z' or submit.run_at >= '10000-01-01T00:00:00Z' then
    raise exception 'run_at must be a time in the years 1 to 9999' using errcode = 'invalid_parameter_value';
  end if;

  insert into deadsure.tasks (id, kind, queue, priority, on_death, max_attempts, timeout, created_at, run_at,
                              payload, idempotency_key, asked)
  values (made, submit.kind, coalesce(submit.queue, declared.queue), coalesce(submit.priority, declared.priority),
          declared.on_death, coalesce(submit.max_attempts, declared.max_attempts),
          coalesce(submit.timeout, declared.timeout), now, coalesce(submit.run_at, now), submit.payload, submit.key,
          case when submit.key is not null then
            deadsure.asked(submit.queue, submit.priority, submit.run_at, submit.max_attempts, submit.timeout) end)
  on conflict (idempotency_key) where idempotency_key is not null do nothing
  returning * into task;

  if task.id is null then
    select t.* into task from deadsure.tasks t where t.idempotency_key = submit.key;
    if task.kind = submit.kind and task.payload = submit.payload and task.asked =
       deadsure.asked(submit.queue, submit.priority, submit.run_at, submit.max_attempts, submit.timeout) then
      return task.id;
    end if;
    raise exception 'this idempotency key belongs to the task %, and that was another request', task.id
      using errcode = 'unique_violation';
  end if;
  if task.run_at <= task.created_at then
    insert into deadsure.ready (queue, priority, run_at, id, kind, batchable)
    values (task.queue, task.priority, task.run_at, task.id, task.kind,
            task.on_death = 'requeue' and task.max_attempts >= 2);
  else
    insert into deadsure.scheduled (run_at, id) values (task.run_at, task.id);
  end if;
  return task.id;
end
$$;

revoke all on function deadsure.submit(text, jsonb, text, text, integer, timestamptz, integer, double precision)
  from public;
