-- name: drill_facts
-- What the database knows of a drill's task, and its own time. Changes nothing. No row: there is no such task.
select t.state, t.attempts, t.max_attempts, t.fence, t.cancel_requested, t.effect_key, t.unknown_cause, t.unknown_needs,
       t.first_perform_at, r.at, r.proof, r.signal, clock_timestamp()
  from deadsure.tasks t
  left join lateral (select e.at, e.detail ->> 'proof' as proof, e.detail ->> 'signal' as signal
                       from deadsure.events e
                      where e.task_id = t.id and e.event = 'recovered' order by e.number limit 1) r on true
 where t.id = cast(:id as uuid);

-- name: drill_remove
-- Removes what a drill has left: the tasks of its kinds in whatever state, those kinds, and its pool's incarnations.
-- Only after its pool has ended. Kinds and pool bear the drill's own name, so nothing else is touched.
with gone as (delete from deadsure.tasks where kind = any(cast(:kinds as text[])) returning id),
told as (delete from deadsure.events e using gone g where e.task_id = g.id),
doubts as (delete from deadsure.unknowns u using gone g where u.id = g.id),
ready as (delete from deadsure.ready r where r.queue = cast(:queue as text)),
later as (delete from deadsure.scheduled s using gone g where s.id = g.id),
kinds as (delete from deadsure.kinds k where k.kind = any(cast(:kinds as text[]))),
slots as (delete from deadsure.slots s using deadsure.incarnations i
           where s.incarnation = i.incarnation and i.pool = cast(:pool as text)),
pools as (delete from deadsure.incarnations i where i.pool = cast(:pool as text))
select count(*) from gone;
