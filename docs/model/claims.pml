/*
 * Two plain tasks and two workers, each under an incarnation of its own: claim, finish, finish-and-claim in one statement,
 * batches and their release, lost answers and late copies, deaths, leases that expire, sweeps, cancels, retries.
 * README.md says what is left out.
 *
 * The two tasks are of one kind. A statement of runtime/sql is one step here: it locks its slot first, and then decides on
 * rows that it has locked.
 *
 *   ON_DEATH   becomes_unknown, fails or requeues; without it any of them
 *   BATCHES    tasks are claimed and finished up to two at a time
 *   FAILOVER   once, the database is replaced by a standby that lacks the last commits
 *   FAULTS     how many answers are lost, workers die and leases are not renewed in time, together
 */
#define TASKS 2
#define WORKERS 2
#define ATTEMPTS 2                      /* max_attempts */
#define NONE TASKS
#define NOBODY WORKERS
#define RELEASES 1                      /* how often what was not started is given back */
#ifndef FAULTS
#define FAULTS 1
#endif

/* --- the guards of the protocol; each switch is a mutant that lacks one */

#ifdef NO_TOKEN
#define FITS(w, t) true
#else
#define FITS(w, t) (slot[w].token == t)
#endif
#ifdef NO_SLOT_ENDED
#define OPEN(w) true
#else
#define OPEN(w) (!slot[w].ended)
#endif
#ifdef CLAIM_WITHOUT_STATE
#define CLAIMABLE(t) (task[t].state != running)
#else
#define CLAIMABLE(t) (task[t].state == queued)
#endif
#ifdef CANCEL_IGNORED_AT_DEATH
#define STOPPED(t) false
#else
#define STOPPED(t) task[t].cancel_requested
#endif
#ifdef JUDGED_BY_TOKEN
#define STILL_NAMED(t) (slot[_pid].token == token[_pid])
#else
#define STILL_NAMED(t) (slot[_pid].names[t] && slot[_pid].fence[t] == hf[t])
#endif
#ifdef KEPT_NOT_NAMED
#define KEPT(t) false
#else
#define KEPT(t) (act[t] == keeps)
#endif
#ifdef TAKES_OVER_ANY
#define KNOWN true
#else
#define KNOWN (slot[_pid].token == token[_pid] || slot[_pid].token == following || slot[_pid].token == taken_over)
#endif

mtype:state = { queued, running, unknown, succeeded, failed, canceled };
mtype:on_death = { becomes_unknown, fails, requeues };
mtype:progress = { not_begun, under_way, through };
mtype:act = { finishes, retries, releases, keeps };

typedef Task { mtype:state state; byte fence, attempts, owner, claim; bool cancel_requested, ready };
typedef Slot { byte token; bool ended, names[TASKS]; byte fence[TASKS] };
typedef Copy { bool pending; byte token, next, most; mtype:act act[TASKS]; byte fence[TASKS], claim[TASKS] };

/* --- what the database knows */

Task task[TASKS];
Slot slot[WORKERS];
mtype:on_death on_death;
bool expired[WORKERS];                  /* lease_until of the worker's incarnation is over */

/* --- what is true, and no statement can read */

bool dead[WORKERS];
byte token[WORKERS];                    /* what the worker believes its slot's token to be */
Copy late[WORKERS];                     /* a statement that was taken for lost, and is still to come */
byte faults, released;
byte started[TASKS];                    /* the last fence under which the handler was started */
bool over[TASKS];                       /* it was canceled while it was queued */
#ifdef FAILOVER
Task task_then[TASKS], no_task;         /* what the standby has */
Slot slot_then[WORKERS], no_slot;
bool broken[WORKERS];                   /* its connection led to the server that is gone */
byte claims;                            /* numbers the claims; not set back */
bool ran[12];                           /* the claims whose handler was started */
#define NUMBER(t) claims++; task[t].claim = claims
#define CLAIM(t) task[t].claim
#define OLD_TOKEN(w) slot_then[w].token
#define POLLS (broken[_pid] || slot[_pid].token != token[_pid])
#else
#define NUMBER(t)
#define CLAIM(t) 0
#define OLD_TOKEN(w) 0
#define POLLS false
#endif

/* The statement that is being carried out, for each task: what, and under which fence. Zero between two steps. */
mtype:act act[TASKS];
byte under[TASKS], claim_of[TASKS], head, x;
bool mine, whole, together;

#define GONE(w) (dead[w] || slot[w].ended)
#define NAMED(t) (slot[task[t].owner].names[t] && slot[task[t].owner].fence[t] == task[t].fence)

inline consistent(t) {
  assert(task[t].state != running || NAMED(t));         /* invariant 1: a slot names every task that its worker holds */
  assert(task[t].state != running || !slot[task[t].owner].ended);       /* invariant 4: a recovery settles all that the slot held */
  assert(task[t].state != queued || task[t].ready);     /* invariant 5: every queued task stands in ready or scheduled */
  assert(task[t].attempts <= ATTEMPTS && (task[t].state != queued || task[t].attempts < ATTEMPTS))      /* invariant 9: no more attempts than the budget */
}

/* A row that is terminal or unknown is read for its state only. The rest is put to zero, so that it multiplies no states. */
inline settled(t) {
  if
  :: task[t].state != queued && task[t].state != running ->
     task[t].fence = 0; task[t].attempts = 0; task[t].cancel_requested = false; started[t] = 0
  :: else
  fi
}

/* A copy whose token has moved on, or whose slot has ended, can do nothing any more. It is forgotten. */
inline forget(w) {
  if
  :: late[w].pending && !(OPEN(w) && FITS(w, late[w].token)) ->
     late[w].pending = false; late[w].token = 0; late[w].next = 0; late[w].most = 0;
     late[w].act[0] = 0; late[w].fence[0] = 0; late[w].claim[0] = 0;
     late[w].act[1] = 0; late[w].fence[1] = 0; late[w].claim[1] = 0
  :: else
  fi
}

/* --- the statements of runtime/sql */

inline put_down(w, t) {
  if
  :: act[t] == finishes || act[t] == retries || act[t] == releases ->
     if
     :: mine && task[t].state == running && task[t].fence == under[t] && task[t].owner == w ->
        assert(CLAIM(t) == claim_of[t]);                        /* invariant 2: nobody finishes but the claim that holds the task */
        assert(act[t] != releases || started[t] != under[t]);   /* invariant 9: an attempt is given back only if it never started */
        task[t].owner = NOBODY;
        if
        :: act[t] == releases ->
           task[t].attempts--;
           if :: task[t].cancel_requested -> task[t].state = canceled :: else -> task[t].state = queued; task[t].ready = true fi
        :: act[t] == retries && !task[t].cancel_requested && task[t].attempts < ATTEMPTS ->
           task[t].state = queued; task[t].ready = true
        :: act[t] == finishes && task[t].cancel_requested && on_death != becomes_unknown -> task[t].state = canceled
        :: act[t] == finishes && !(task[t].cancel_requested && on_death != becomes_unknown) -> task[t].state = succeeded
        :: else -> task[t].state = failed
        fi;
        settled(t)
     :: else -> whole = false
     fi
  :: else
  fi
}

inline pick(w, t) {
  task[t].ready = false;
  if
  :: CLAIMABLE(t) ->
     assert(!over[t]);                          /* invariant 10: what was canceled while it was queued never runs */
     task[t].state = running; task[t].owner = w; task[t].fence++; task[t].attempts++;
     NUMBER(t);
     slot[w].names[t] = true; slot[w].fence[t] = task[t].fence
  :: else                                       /* a stale row is dropped */
  fi
}

/* hot.sql: finish_and_claim; batch.sql: finish_and_claim_many; where nothing is claimed also effects.sql: finish_alone. */
inline step(w, shown, nxt, most) {
  mine = OPEN(w) && FITS(w, shown);
  whole = mine;
  put_down(w, 0); put_down(w, 1);
  if
  :: whole ->
     slot[w].token = nxt;
     slot[w].names[0] = KEPT(0); slot[w].fence[0] = (KEPT(0) -> under[0] : 0);
     slot[w].names[1] = KEPT(1); slot[w].fence[1] = (KEPT(1) -> under[1] : 0);
     if
     :: most > 0 && !expired[w] && (task[0].ready || task[1].ready) ->
        if :: task[0].ready -> head = 0 :: task[1].ready -> head = 1 fi;
        together = (most > 1 && task[head].attempts == 0 && task[1 - head].ready && task[1 - head].attempts == 0);
        do
        :: pick(w, head);
           if :: together -> together = false; head = 1 - head :: else -> break fi
        od;
        head = 0
     :: else
     fi
  :: else
  fi;
  forget(w);
  consistent(0); consistent(1)
}

/* recover.sql: end_slots, then settle, in one transaction that holds the slot's lock. */
inline settle_dead(w, t) {
  if
  :: task[t].state == running && task[t].owner == w ->
     task[t].fence++; task[t].owner = NOBODY;
     if
     :: on_death == becomes_unknown -> task[t].state = unknown
     :: on_death == fails -> task[t].state = failed
     :: on_death == requeues && STOPPED(t) -> task[t].state = canceled
     :: on_death == requeues && !STOPPED(t) && task[t].attempts < ATTEMPTS ->
        task[t].state = queued; task[t].ready = true;
        assert(!task[t].cancel_requested)       /* invariant 10: not queued again after a cancel request */
     :: else -> task[t].state = failed
     fi;
     settled(t)
  :: else
  fi
}

inline recover(w, names_0, names_1) {
  assert(dead[w] || expired[w]);                /* invariant 4: no recovery without a proof of death */
  slot[w].ended = true;
  forget(w);
  if :: names_0 -> settle_dead(w, 0) :: else fi;
  if :: names_1 -> settle_dead(w, 1) :: else fi;
  consistent(0); consistent(1)
}

inline request_cancel(t) {                                                      /* cancel.sql */
  task[t].cancel_requested = true;
  if
  :: task[t].state == queued ->
     task[t].state = canceled; over[t] = true;
     settled(t);
     if :: task[t].ready = false :: true fi     /* a row that somebody holds is skipped, and stays */
  :: else
  fi
}

/* --- a worker */

#define ON_THE_WAY(w, v) (late[w].pending && (v == late[w].token || v == late[w].next))
#define USED(w, v) (v == slot[w].token || v == token[w] || v == OLD_TOKEN(w) || v == following || ON_THE_WAY(w, v))

/* A token that is not in use: in truth a random number. */
inline fresh(w, v) {
  x = 1;
  do
  :: USED(w, x) -> x++
  :: else -> break
  od;
  v = x; x = 0
}

/* Its handler starts. A worker whose slot has ended may not know it yet: its kind said that this does no harm. */
inline begin(t) {
#ifdef FAILOVER
  assert(!ran[hc[t]]);                          /* invariant 1: one claim starts its handler once */
  ran[hc[t]] = true;
#else
  if
  :: !slot[_pid].ended ->
     assert(hf[t] > started[t]);                /* invariant 1: one claim starts its handler once */
     started[t] = hf[t]
  :: else
  fi;
#endif
#ifdef BATCHES
  hand[t] = under_way
#else
  hand[t] = through
#endif
}

inline forget_hand(t) { hand[t] = 0; hf[t] = 0; hc[t] = 0 }

/* What the statement does with what is in hand. */
inline say(t) {
  under[t] = hf[t]; claim_of[t] = hc[t];
  if
  :: hand[t] == 0 -> act[t] = 0
  :: hand[t] != 0 && again == t -> act[t] = retries
  :: hand[t] != 0 && again != t && (again != NONE || hand[t] == under_way) -> act[t] = keeps
  :: hand[t] == through && again == NONE -> act[t] = finishes
  :: hand[t] == not_begun && again == NONE -> act[t] = releases
  fi
}

inline unsay() {
  act[0] = 0; act[1] = 0; under[0] = 0; under[1] = 0; claim_of[0] = 0; claim_of[1] = 0; mine = false; whole = false
}

#define IDLE (hand[0] == 0 && hand[1] == 0)
#define BUSY (hand[0] == under_way || hand[1] == under_way)
#define WOULD_RELEASE (hand[0] == not_begun || hand[1] == not_begun)
#define MAY_RELEASE (!WOULD_RELEASE || released < RELEASES)
#define STAYS(t) (act[t] == 0 || act[t] == keeps)
#define MAY_ACT (_pid == 0 || task[0].fence + task[1].fence > 0 || GONE(0))     /* the workers are alike */

/* Taken into the hand: what the slot names under this worker, and is not there yet. */
inline take(t) {
  if
  :: slot[_pid].names[t] && act[t] != keeps && task[t].state == running && task[t].owner == _pid && task[t].fence == slot[_pid].fence[t] ->
     hf[t] = task[t].fence; hc[t] = CLAIM(t); hand[t] = not_begun;
#ifndef BATCHES
     begin(t)
#endif
  :: else
  fi
}

active [WORKERS] proctype worker() {
  mtype:progress hand[TASKS]; byte hf[TASKS], hc[TASKS];        /* what is in hand, under which fence (and claim) */
  byte most, again = NONE, following, taken_over;
end:
  atomic {
    MAY_ACT && (!IDLE || task[0].ready || task[1].ready || POLLS);
    if
#ifdef BATCHES
    :: hand[0] == not_begun && !BUSY -> begin(0); goto end
    :: hand[1] == not_begun && !BUSY -> begin(1); goto end
    :: hand[0] == under_way -> hand[0] = through; goto end
    :: hand[1] == under_way -> hand[1] = through; goto end
    :: hand[0] == under_way && hand[1] != 0 && MAY_RELEASE -> most = 0          /* the batch is cut short */
    :: hand[1] == under_way && hand[0] != 0 && MAY_RELEASE -> most = 0
    :: !BUSY && MAY_RELEASE -> most = 2
#endif
    :: !BUSY && MAY_RELEASE -> most = 1
    :: hand[0] == through && !BUSY -> most = 0; again = 0
    :: hand[1] == through && !BUSY -> most = 0; again = 1
    fi;
#ifdef BATCHES
    if :: WOULD_RELEASE && again == NONE -> released++ :: else fi;
#endif
sending:
    say(0); say(1);
    fresh(_pid, following); fresh(_pid, taken_over);
    if
#ifdef FAILOVER
    :: broken[_pid] -> broken[_pid] = false; unsay(); goto doubt
    :: !broken[_pid] ->
#else
    :: faults < FAULTS ->                                       /* not carried out; it may be yet */
       faults++;
       late[_pid].pending = true; late[_pid].token = token[_pid]; late[_pid].next = following; late[_pid].most = most;
       late[_pid].act[0] = act[0]; late[_pid].fence[0] = under[0]; late[_pid].claim[0] = claim_of[0];
       late[_pid].act[1] = act[1]; late[_pid].fence[1] = under[1]; late[_pid].claim[1] = claim_of[1];
       if :: unsay(); goto doubt :: goto dies fi
    :: !IDLE && faults < FAULTS -> faults++; goto dies
    :: true ->
#endif
       step(_pid, token[_pid], following, most);
       if
       :: faults < FAULTS -> faults++; unsay(); goto doubt      /* carried out, and the answer is lost */
       :: !mine -> goto dies                                    /* its slot has ended, or is not as it left it */
       :: mine ->
          if :: whole -> token[_pid] = following :: else fi;
          if :: act[0] != keeps -> forget_hand(0) :: else fi;
          if :: act[1] != keeps -> forget_hand(1) :: else fi;
          if :: whole -> take(0); take(1) :: else fi
       fi
    fi;
    unsay(); most = 0; again = NONE; following = 0; taken_over = 0;
    goto end
  };
doubt:
  atomic {
    if
    :: slot[_pid].ended || !KNOWN -> goto dies
    :: !slot[_pid].ended && KNOWN ->                            /* hot.sql: slot_take_over; then claimed_task */
       say(0); say(1);
       whole = !(STAYS(0) && STAYS(1)) && (STAYS(0) || STILL_NAMED(0)) && (STAYS(1) || STILL_NAMED(1));
       slot[_pid].token = taken_over; token[_pid] = taken_over;
       forget(_pid);
       following = 0; taken_over = 0;
       if
       :: whole -> unsay(); goto sending                        /* all that it was to finish is named: it has not happened */
       :: else ->
          if :: act[0] != keeps -> forget_hand(0) :: else fi;
          if :: act[1] != keeps -> forget_hand(1) :: else fi;
          take(0); take(1);
          unsay(); most = 0; again = NONE;
          goto end
       fi
    :: !slot[_pid].ended && KNOWN && faults < FAULTS ->         /* this answer is lost, too */
       faults++; slot[_pid].token = taken_over; forget(_pid); goto doubt
    :: faults < FAULTS -> faults++; goto dies
    fi
  };
dies:
  atomic {
    dead[_pid] = true;
    unsay(); forget_hand(0); forget_hand(1); most = 0; again = NONE; following = 0; taken_over = 0
  }
}

#define COPY late[_pid - WORKERS]

active [WORKERS] proctype wire() {
  byte old, new, many;
end:
  do
  :: atomic { COPY.pending ->
       old = COPY.token; new = COPY.next; many = COPY.most;
       act[0] = COPY.act[0]; under[0] = COPY.fence[0]; claim_of[0] = COPY.claim[0];
       act[1] = COPY.act[1]; under[1] = COPY.fence[1]; claim_of[1] = COPY.claim[1];
       COPY.pending = false; COPY.token = 0; COPY.next = 0; COPY.most = 0;
       COPY.act[0] = 0; COPY.fence[0] = 0; COPY.claim[0] = 0;
       COPY.act[1] = 0; COPY.fence[1] = 0; COPY.claim[1] = 0;
       step(_pid - WORKERS, old, new, many);
       unsay(); old = 0; new = 0; many = 0
     }
  od
}

/* --- supervisors: each recovers its own dead, and renews its lease; another one sweeps it when that is over */

#define W (_pid - 2 * WORKERS)
#define V (_pid - 3 * WORKERS)

active [WORKERS] proctype supervisor() {
  bool named_0, named_1;
end:
  do
  :: atomic { dead[W] && !slot[W].ended ->
       named_0 = slot[W].names[0]; named_1 = slot[W].names[1]
#ifdef RECOVERY_IN_ONE_STATEMENT
     };                                         /* its snapshot; then it waits for the slot's lock */
     atomic { !slot[W].ended ->
#else
       ;
#endif
       recover(W, named_0, named_1);
       named_0 = false; named_1 = false
     }
  :: atomic { !expired[W] && faults < FAULTS && !slot[W].ended -> faults++; expired[W] = true }
  :: atomic { expired[W] && !slot[W].ended -> expired[W] = false }              /* renewed after all */
  od
}

active [WORKERS] proctype sweeper() {
  bool named_0, named_1;
end:
  do
  :: atomic { expired[V] && !slot[V].ended ->
#ifdef SWEEP_READS_FIRST
       skip
     };
     atomic { !slot[V].ended ->
#endif
       named_0 = slot[V].names[0]; named_1 = slot[V].names[1];
       recover(V, named_0, named_1);
       named_0 = false; named_1 = false
     }
  od
}

#ifndef FAILOVER
active proctype user() {
end:
  if
  :: atomic { !task[0].cancel_requested && (task[0].state == queued || task[0].state == running) -> request_cancel(0); consistent(0) }
  :: on_death != 0
  fi
}
#else
inline copy_task(to, from) {
  to.state = from.state; to.fence = from.fence; to.attempts = from.attempts; to.owner = from.owner;
  to.claim = from.claim; to.ready = from.ready
}
inline copy_slot(to, from) {
  to.token = from.token; to.ended = from.ended;
  to.names[0] = from.names[0]; to.fence[0] = from.fence[0]; to.names[1] = from.names[1]; to.fence[1] = from.fence[1]
}

active proctype failover() {
end:
  atomic { on_death != 0 ->                     /* from here on nothing reaches the standby */
    copy_task(task_then[0], task[0]); copy_task(task_then[1], task[1]);
    copy_slot(slot_then[0], slot[0]); copy_slot(slot_then[1], slot[1])
  };
  atomic {
    copy_task(task[0], task_then[0]); copy_task(task[1], task_then[1]);
    copy_slot(slot[0], slot_then[0]); copy_slot(slot[1], slot_then[1]);
    copy_task(task_then[0], no_task); copy_task(task_then[1], no_task);
    copy_slot(slot_then[0], no_slot); copy_slot(slot_then[1], no_slot);
    if :: broken[0] = true :: true fi; if :: broken[1] = true :: true fi        /* or it has a new connection already */
  }
}
#endif

/* --- when nothing more can happen */

active proctype quiet() {
  timeout;
  assert(task[0].state != running && task[1].state != running);         /* liveness: nothing stays running without a living owner */
  assert((task[0].state != queued && task[1].state != queued) || (GONE(0) && GONE(1)))  /* liveness: queued is claimed while anybody lives */
}

init {
  atomic {
    task[0].owner = NOBODY; task[1].owner = NOBODY;
    task[0].state = queued; task[1].state = queued;
    task[0].ready = true; task[1].ready = true;
#ifdef ON_DEATH
    on_death = ON_DEATH
#else
    if :: on_death = becomes_unknown :: on_death = fails :: on_death = requeues fi
#endif
  }
}
