/*
 * One task with an effect, from its first claim to its end: claim, check before the call, call, finish, death and
 * recovery, sweep of a lost lease, lookup, settling, queuing again, cancel, decision. README.md says what is left out.
 *
 * A statement of runtime/sql is one step here, because it decides on rows that it has locked. Between two of them
 * everything else may happen: a worker that was stopped for an hour is one whose next step comes late.
 *
 *   LOOKUP, DEDUP   1 or 0: what the provider does, and what its contract says
 *   RETENTION       the provider forgets a key after a while, and refuses what comes after its not-after time
 *   SWAP            the second worker knows another provider under the same name
 *   STRICTER        the second worker's application no longer says of the same provider that it dedups
 *   DECISION        a person reads, thinks, and decides; without it reading and deciding are one step
 */
#define ATTEMPTS 2                      /* max_attempts */
#define WORKERS 2
#ifndef SWEEPS
#define SWEEPS 1                        /* how often a lease may expire while its worker may live */
#endif
#define KEEPS 2                         /* key_retention, in ticks; a call's own timeout is one tick */
#if defined(RETENTION) || defined(DECISION)
#define LOOKUPS 1
#else
#define LOOKUPS 2
#endif
#define NOBODY WORKERS
#define NEVER 9
#define CONTRACT (LOOKUP || DEDUP)
#ifdef SWAP
#define PROVIDERS 2
#define IDENTITY(w) w
#else
#define PROVIDERS 1
#define IDENTITY(w) 0
#endif
#ifdef STRICTER
#define DEDUPS(w) (DEDUP && w == 0)
#else
#define DEDUPS(w) DEDUP
#endif
#if defined(SWAP) || defined(STRICTER)
#define FIRST(w) true
#else
#define FIRST(w) (w == 0)               /* the workers are alike: it does not matter which is first */
#endif

/* --- the guards of the protocol; each switch is a mutant that lacks one */

#ifdef NO_FENCE
#define HOLDS(w, f) (state == running)
#else
#define HOLDS(w, f) (!ended[w] && state == running && fence == f && owner == w)
#endif
#ifdef ATTEMPT_COUNTED_AT_FINISH
#define COUNT_AT_CLAIM
#define COUNT_AT_FINISH attempts++
#else
#define COUNT_AT_CLAIM attempts++
#define COUNT_AT_FINISH
#endif
#ifdef NO_IDENTITY
#define OTHER_PROVIDER(w) false
#else
#define OTHER_PROVIDER(w) (identity != IDENTITY(w))
#endif
#ifdef NO_RETENTION_BEFORE_CALL
#define FORGOTTEN_BY_THEN false
#else
#define FORGOTTEN_BY_THEN (asked != NEVER && asked + 1 >= KEEPS)
#endif
#ifdef NO_DEDUP_BEFORE_CALL
#define MAY_REPEAT(w) true
#else
#define MAY_REPEAT(w) DEDUPS(w)
#endif
#ifdef LATE_COPY_SETS_THE_TIME
#define SAME_PERFORM false
#else
#define SAME_PERFORM performing
#endif
#ifdef FINISH_FORGETS_EARLIER
#define EARLIER_OPEN false
#else
#define EARLIER_OPEN unsettled_earlier
#endif
#ifdef CANCELED_ALTHOUGH_UNSETTLED
#define UNSETTLED_QUEUED false
#else
#define UNSETTLED_QUEUED unsettled
#endif
#ifdef CANCEL_IGNORED_AT_REQUEUE
#define STOPPED (attempts >= ATTEMPTS)
#else
#define STOPPED (cancel_requested || attempts >= ATTEMPTS)
#endif
#ifdef NO_RETENTION_AT_REQUEUE
#define FORGOTTEN false
#else
#define FORGOTTEN (asked != NEVER && asked >= KEEPS)
#endif
#ifdef REQUEUE_ON_LOOKUP_ALONE
#define SENDER_GONE true
#define SETTLED true
#else
#define SENDER_GONE (sender_gone != 0)
#ifdef SETTLE_TESTED_AT_DECISION
#define SETTLED (sender_gone == 2)
#else
#define SETTLED settled
#endif
#endif
#ifdef REQUEUE_WITHOUT_CONTRACT
#define OFFERED true
#define NO_WAY_OUT false
#else
#define OFFERED CONTRACT
#define NO_WAY_OUT (!LOOKUP || !SENDER_GONE)
#endif
#ifdef DEATH_IS_FAILURE
#define AFTER_DEATH failed
#else
#define AFTER_DEATH unknown
#endif
#ifdef LEASE_COUNTS_AS_EXIT
#define BY_LEASE true
#else
#define BY_LEASE false
#endif
#ifdef NO_IF_MATCH
#define AS_SEEN true
#else
#define AS_SEEN (!moved)
#endif
#ifdef NO_NOT_AFTER
#define TOO_LATE(a) false
#else
#define TOO_LATE(a) (age[a] > 1)
#endif

mtype:state = { queued, running, unknown, succeeded, failed, canceled };
mtype:wire = { nothing, flying, done, rejected };
mtype:answer = { receipt, definite_no, not_sent, nobody_knows, cancel_seen, person_needed };
mtype:verdict = { go, not_mine, asked_to_cancel, not_again };

/* --- what the database knows: the task's row, and what `slots` and `unknowns` say of it */

mtype:state state = queued;
byte fence, attempts;
byte owner = NOBODY;
bool cancel_requested, unsettled, unsettled_earlier;
bool performing;                        /* perform_fence = fence */
byte sender_gone;                       /* sender_gone_at: 0 null, 1 set, 2 set, and settle_after has passed since */
byte asked = NEVER;                     /* ticks since first_perform_at, at most KEEPS; NEVER: null */
byte identity = PROVIDERS;              /* provider_identity; PROVIDERS: null */
bool needs_lookup;                      /* unknowns.needs = 'lookup' */
bool ended[WORKERS];                    /* slots.ended */

/* --- what is true, and no statement can read. Attempts count from 1 */

mtype:wire request[ATTEMPTS + 1];       /* each attempt's request: on its way, or answered */
byte sender[ATTEMPTS + 1];
bool may_send[ATTEMPTS + 1];            /* the sender may yet put it on the wire, or waits for the answer */
bool gone_then[ATTEMPTS + 1];           /* it was gone when sender_gone_at was written */
byte age[ATTEMPTS + 1];                 /* ticks since its check before the call, at most 2 */
byte effects, effects_at[PROVIDERS];
byte known[PROVIDERS];                  /* ticks since the key was used there, at most KEEPS */
bool dead[WORKERS];
byte claims, sweeps;
bool by_person;                         /* a person has decided */
bool moved = true;                      /* `version` is another than the person saw */
bool copy; byte copy_worker, copy_fence;        /* a check before the call was repeated; its first copy is still to come */
byte lookups;                           /* how many are under way */
byte i; bool earlier, open; mtype:verdict late;         /* scratch, zero between two steps */

#define GONE(w) (!(may_send[1] && sender[1] == w) && !(may_send[2] && sender[2] == w))
#ifdef RETENTION
#define REMEMBERS(p) (effects_at[p] > 0 && known[p] < KEEPS)
#else
#define REMEMBERS(p) (effects_at[p] > 0)
#endif

/* --- the statements of runtime/sql */

/* A terminal row is read for its state only. What else it holds is put to zero, so that it does not multiply states. */
inline over() {
  fence = 0; attempts = 0; cancel_requested = false; unsettled = false; needs_lookup = false; sender_gone = 0;
  identity = PROVIDERS; asked = NEVER; performing = false; unsettled_earlier = false
}

inline claim(w) {                                                               /* hot.sql: finish_and_claim */
  fence++; owner = w; state = running;
  COUNT_AT_CLAIM;
  performing = false; sender_gone = 0;          /* not read before they are written again */
  claims++;
  assert(claims <= ATTEMPTS)                    /* invariant 9: no more attempts than the budget */
}

inline check_before_call(w, f, v) {                                             /* effects.sql: before_call */
  if
  :: !(!ended[w] && state == running && fence == f && owner == w) -> v = not_mine
  :: else ->
     earlier = (performing -> unsettled_earlier : unsettled);
     if
     :: cancel_requested -> v = asked_to_cancel
     :: !cancel_requested && earlier && (OTHER_PROVIDER(w) || FORGOTTEN_BY_THEN || !MAY_REPEAT(w)) -> v = not_again
     :: else ->
        v = go;
        if :: !earlier && !SAME_PERFORM -> asked = 0 :: else fi;
        identity = IDENTITY(w); performing = true; unsettled = true; unsettled_earlier = earlier; moved = true;
        assert(!earlier || DEDUPS(w))           /* invariant 8: called again only as this application's contract allows */
     fi;
     earlier = false
  fi
}

/* Where the contract has a dedup nobody reads sender_gone_at. */
inline sender_is_gone() {
  if
  :: !DEDUPS(1) ->
     sender_gone = 1;
     gone_then[1] = !may_send[1]; gone_then[2] = !may_send[2]
  :: else
  fi
}

inline finish(w, f, a, what) {                                                  /* effects.sql: finish_alone */
  if
  :: HOLDS(w, f) ->
     assert(a == claims && owner == w);         /* invariant 2: nobody finishes but the claim that holds the task */
     open = (!performing -> unsettled : (what == nobody_knows || what == person_needed -> true : EARLIER_OPEN));
     COUNT_AT_FINISH;
     if
     :: what == receipt -> state = succeeded
     :: what == nobody_knows -> state = unknown; needs_lookup = OFFERED
     :: what == person_needed -> state = unknown
     :: what == not_sent && !cancel_requested && attempts < ATTEMPTS -> state = queued
     :: else ->
        if
        :: open -> state = unknown; needs_lookup = OFFERED
        :: !open && cancel_requested && what != definite_no -> state = canceled
        :: else -> state = failed
        fi
     fi;
     assert(state != succeeded || effects > 0); /* invariant 12: succeeded only on the evidence of a receipt */
     assert((state != failed && state != canceled) || effects == 0);    /* invariant 10: not over while it may be done */
     owner = NOBODY; moved = true;
     if
     :: state == unknown || state == queued ->
        if :: !open -> asked = NEVER :: else fi;
        unsettled = open; performing = false; unsettled_earlier = false;
        sender_is_gone()
     :: else -> over()
     fi;
     open = false
  :: else                                       /* refused: it changes nothing */
  fi
}

/* recover.sql: end_slots and settle. `gone`: by the proof of an exit, with nothing left behind that could send. */
inline recover(w, gone) {
  ended[w] = true;
  if
  :: state == running && owner == w ->
     fence++; owner = NOBODY; performing = false; unsettled_earlier = false; moved = true;
     state = AFTER_DEATH;
     assert(state == unknown || effects == 0);  /* invariant 10: not over while it may be done */
     if :: state == unknown -> needs_lookup = OFFERED :: else fi;
     if
     :: gone ->
        sender_is_gone();
        assert(dead[w] && GONE(w))              /* invariant 4: what is kept as proof of an exit is one */
     :: else -> sender_gone = 0
     fi
  :: else
  fi
}

inline request_cancel() {                                                       /* cancel.sql */
  cancel_requested = true; moved = true;
  if
  :: state == queued && !UNSETTLED_QUEUED ->
     state = canceled;
     over();
     assert(effects == 0)                       /* invariant 10: not over while it may be done */
  :: state == queued && UNSETTLED_QUEUED -> state = unknown; needs_lookup = LOOKUP
  :: else
  fi
}

inline found(f) {                                                               /* reconcile.sql: reconcile_found */
  if
  :: state == unknown && fence == f ->
     assert(effects > 0);                       /* invariant 12: succeeded only on the evidence of a receipt */
     state = succeeded; moved = true;
     over()
  :: else
  fi
}

/* reconcile.sql: reconcile_absent. `settled`: settle_after had passed before the lookup started. */
inline absent(l, f, settled) {
  if
  :: state == unknown && fence == f ->
     moved = true;
     if
     :: STOPPED || FORGOTTEN || (!DEDUPS(l) && NO_WAY_OUT) -> needs_lookup = false
     :: !(STOPPED || FORGOTTEN || (!DEDUPS(l) && NO_WAY_OUT)) && (DEDUPS(l) || SETTLED) ->
        state = queued; needs_lookup = false;
        if :: DEDUPS(l) :: else -> unsettled = false fi;
        assert(CONTRACT);                       /* invariant 8: never run again without a contract */
        assert(!cancel_requested)               /* invariant 10: not queued again after a cancel request */
     :: else -> needs_lookup = true
     fi
  :: else
  fi
}

/* --- a worker */

inline dies() { dead[_pid] = true; f = 0; a = 0; v = 0; what = 0 }

active [WORKERS] proctype worker() {
  byte f, a; mtype:verdict v; mtype:answer what;

end:
  atomic {
    state == queued && !ended[_pid] && (FIRST(_pid) || claims > 0) ->
    claim(_pid);
    f = fence; a = claims; sender[a] = _pid
  };
  if
  :: atomic { what = definite_no; goto finishing }              /* its handler raised */
  :: atomic { dies(); goto gone }
  :: true
  fi;

checking:
  atomic {
    check_before_call(_pid, f, v);
    if
    :: v == go ->
       v = 0;
#ifdef RETENTION
       if :: copy = true; copy_worker = _pid; copy_fence = f :: true fi;
#endif
       if
       :: may_send[a] = true; gone_then[a] = false; age[a] = 0
       :: goto checking                                         /* the answer was lost: asked again */
       :: dies(); goto gone
       fi
    :: v == not_mine -> what = not_sent; goto finishing
    :: v == asked_to_cancel -> what = cancel_seen; goto finishing
    :: v == not_again -> what = person_needed; goto finishing
    fi
  };

  if
  :: atomic { request[a] = flying }
  :: atomic { may_send[a] = false; what = not_sent; goto finishing }    /* no connection, or no trust in the lease */
  :: atomic { dies(); goto gone }                               /* something it left behind may still send */
  :: atomic { may_send[a] = false; dies(); goto gone }
  fi;

  if
  :: atomic { request[a] == done -> what = receipt; request[a] = nothing; may_send[a] = false }
  :: atomic { request[a] == rejected -> what = definite_no; request[a] = nothing; may_send[a] = false }
  :: atomic { request[a] == flying -> what = nobody_knows; may_send[a] = false }        /* time is up */
  :: atomic { request[a] != flying -> what = nobody_knows; request[a] = nothing; may_send[a] = false }  /* no answer */
  :: atomic { request[a] == flying -> may_send[a] = false; dies(); goto gone }
  :: atomic { request[a] != flying -> request[a] = nothing; may_send[a] = false; dies(); goto gone }
  fi;

finishing:
  if
  :: atomic {
       finish(_pid, f, a, what);
       f = 0; a = 0; v = 0; what = 0;
       if :: ended[_pid] -> goto gone :: else -> goto end fi
     }
  :: atomic { dies(); goto gone }
  fi;
gone:
  skip
}

/* --- lookups, by whichever worker is free. Two at once, because the hold of a slow one can be over */

#define ME (_pid - WORKERS)

active [LOOKUPS] proctype lookup() {
  byte f; bool settled, shown;
end:
  do
  :: atomic { state == unknown && needs_lookup && (FIRST(ME) || lookups > 0) ->
       f = fence; settled = (sender_gone == 2); lookups++
     };
     if
     :: atomic { !LOOKUP }
     :: atomic { LOOKUP && (identity == PROVIDERS || identity == IDENTITY(ME)) -> shown = REMEMBERS(IDENTITY(ME)) }
     :: atomic { LOOKUP -> f = 0; settled = false; lookups--; goto end }        /* unavailable */
     fi;
     atomic {
       if :: shown -> found(f) :: else -> absent(ME, f, settled) fi;
       f = 0; settled = false; shown = false; lookups--
     }
  od
}

/* --- the network and the provider */

inline arrive(a, p) {
  if
  :: TOO_LATE(a) -> request[a] = rejected
  :: !TOO_LATE(a) && DEDUP && REMEMBERS(p) -> request[a] = done
  :: !TOO_LATE(a) && !(DEDUP && REMEMBERS(p)) -> request[a] = rejected
  :: !TOO_LATE(a) && !(DEDUP && REMEMBERS(p)) ->
     effects++; effects_at[p]++; known[p] = 0; request[a] = done;
     assert(effects <= 1);                      /* invariant 7: at most one effect */
     assert(by_person || (state != failed && state != canceled))        /* invariant 10: not over while it may be done */
  fi;
  if :: !may_send[a] -> request[a] = nothing :: else fi
}

#define A (_pid - WORKERS - LOOKUPS + 1)

active [ATTEMPTS] proctype wire() {
end:
  do
  :: atomic { request[A] == flying -> arrive(A, IDENTITY(sender[A])) }
  :: atomic { request[A] == flying -> request[A] = nothing }                    /* lost */
  :: atomic { request[A] == nothing && may_send[A] && dead[sender[A]] ->        /* by what a dead worker left behind */
       request[A] = flying; may_send[A] = false
     }
  od
}

/* --- supervisors: an exit, an exit or a pool lock that does not prove the senders gone, a lease that is over */

#define W (_pid - WORKERS - LOOKUPS - ATTEMPTS)

active [WORKERS] proctype supervisor() {
end:
  do
  :: atomic { !ended[W] && dead[W] && GONE(W) -> recover(W, true) }
  :: atomic { !ended[W] && dead[W] -> recover(W, false) }
  :: atomic { !ended[W] && owner == W && sweeps < SWEEPS -> sweeps++; recover(W, BY_LEASE) }
  od
}

/* --- time passes */

active proctype clock() {
  byte a;
end:
  do
  :: atomic { sender_gone == 1 ->               /* settle_after: what was sent before has arrived by now, or never will */
       sender_gone = 2;
       for (a : 1 .. ATTEMPTS) {
         if :: gone_then[a] && request[a] == flying -> request[a] = nothing :: else fi
       }
       a = 0
     }
#ifdef RETENTION
  :: atomic { asked < KEEPS || (effects > 0 && known[0] < KEEPS) || (may_send[1] && age[1] < 2) || (may_send[2] && age[2] < 2) ->
       if :: asked < KEEPS -> asked++ :: else fi;
       if :: effects > 0 && known[0] < KEEPS -> known[0]++ :: else fi;
       for (a : 1 .. ATTEMPTS) {
         if :: age[a] < 2 -> age[a]++ :: else fi
       }
       a = 0
     }
  :: atomic { copy ->
       copy = false;
       check_before_call(copy_worker, copy_fence, late);
       late = 0; copy_worker = 0; copy_fence = 0
     }
#endif
  od
}

/* --- people. Where the question is whether a call may be repeated they would only end it */

#if !defined(RETENTION) && !defined(STRICTER)

active proctype user() {
end:
  if
  :: atomic { state == queued || state == running || state == unknown -> request_cancel() }
  :: true
  fi
}

active proctype person() {
#ifdef DECISION
  byte seen_fence; bool seen_cancel;
end:
  atomic { state == unknown -> moved = false; seen_fence = fence; seen_cancel = cancel_requested };
  if
  :: atomic { state == unknown && AS_SEEN ->                                    /* reconcile.sql: resolve */
       assert(seen_fence == fence && seen_cancel == cancel_requested);  /* invariant 12: decided on what was seen */
       by_person = true;
       if :: state = succeeded :: state = failed :: state = canceled fi;
       over()
     }
  :: atomic { state == unknown && CONTRACT -> needs_lookup = true; moved = true }       /* reconcile.sql: ask_now */
  :: true
  fi
#else
end:
  if
  :: atomic { state == unknown -> by_person = true; state = failed; over() }
  :: true
  fi
#endif
}

#endif

/* --- when nothing more can happen */

active proctype quiet() {
  timeout;
  assert(state != running);                     /* nothing stays running without a living owner */
  assert(state != unknown || !needs_lookup);    /* a lookup that is due is made */
  assert(state != queued || (ended[0] || dead[0]) && (ended[1] || dead[1]))     /* queued is claimed while anybody lives */
}
