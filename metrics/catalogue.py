"""Every metric: its name, what it means, its labels, and the values of a label that are known beforehand.

A label's values are a closed list, or names from a bounded table (kinds, providers, routes), or the number of a
process. No task id, no key, no path: the number of series does not grow with what clients send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What stands for every name that has no place in its table any more.
OTHER = "other"
#: The route of a request that no route of ours has matched.
UNMATCHED = "unmatched"
#: How many kinds and providers have series of their own.
MOST_KINDS = 50
MOST_PROVIDERS = 15

#: The closed lists. A metric whose label is named differently in two metrics has its own list in `Metric.values`.
WORKER_STATES = ("starting", "idle", "busy", "stopping")
EXIT_CAUSES = ("ok", "error", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM", "other")
TERMINAL_STATES = ("succeeded", "failed", "canceled")
OPEN_STATES = ("queued", "scheduled", "running", "unknown")
UNKNOWN_CAUSES = (
    "worker_died",
    "lease_expired",
    "ambiguous_answer",
    "receipt_mismatch",
    "timeout",
    "shutdown",
    "unsettled_attempt",
    "retention_passed",
    "provider_changed",
)
NEEDS = ("lookup", "decision")
PROOFS = ("exit", "pool_lock", "lease")
TABLES = ("tasks", "ready", "scheduled", "unknowns", "slots")
PARTS = ("queued", "held", "unknown", "server")

Type = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `labels` in the order in which they are shown; `values` are those that are known beforehand.

    A histogram's `buckets` are upper bounds in seconds, without the infinite one.
    """

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[float, ...] = ()


SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REQUEST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)
SETTLE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
WAIT = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)
RUN = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)


def _counter(name: str, help: str, *labels: str, values: tuple[tuple[str, ...], ...] = ()) -> Metric:
    return Metric(name, "counter", help, labels, values)


def _gauge(name: str, help: str, *labels: str, values: tuple[tuple[str, ...], ...] = ()) -> Metric:
    return Metric(name, "gauge", help, labels, values)


def _histogram(
    name: str, help: str, buckets: tuple[float, ...], *labels: str, values: tuple[tuple[str, ...], ...] = ()
) -> Metric:
    return Metric(name, "histogram", help, labels, values, buckets)


# --- the pool

BUILD_INFO = _gauge("deadsure_build_info", "Always 1; the label is the version that runs.", "version")
WORKERS = _gauge(
    "deadsure_workers", "Workers of this pool by what they do now.", "pool", "state", values=(WORKER_STATES,)
)
POOL_SIZE = _gauge("deadsure_pool_size", "Workers that this pool is configured to have.", "pool")
SATURATION = _gauge("deadsure_pool_saturation_ratio", "Busy workers divided by the pool's size.", "pool")
WORKER_EXITS = _counter(
    "deadsure_worker_exits_total",
    "Workers that ended, by how the kernel says they ended.",
    "pool",
    "cause",
    values=(EXIT_CAUSES,),
)
START_FAILURES = _counter(
    "deadsure_worker_start_failures_total",
    "Workers that ended before they were ready, or again and again within a second of it: their seats wait.",
    "pool",
)
START_TIME = _gauge("deadsure_supervisor_start_time_seconds", "Unix time at which the supervisor started.", "pool")
ROUND_AGE = _gauge("deadsure_supervisor_round_age_seconds", "Seconds since the supervisor last went round.", "pool")
ROUND = _histogram(
    "deadsure_supervisor_round_seconds", "How long the supervisor's rounds took, without their sleep.", SHORT, "pool"
)
DEATHS_UNSETTLED = _gauge("deadsure_deaths_unsettled", "Deaths whose recovery is not committed yet.", "pool")
LINES_DROPPED = _counter("deadsure_log_lines_dropped_total", "Log lines dropped because nobody read them.", "pool")

# --- the work

CLAIMS = _counter(
    "deadsure_claims_total",
    "Tasks claimed (won), claim statements that found none (empty), and those whose answer was lost (in_doubt).",
    "pool",
    "outcome",
    values=(("won", "empty", "in_doubt"),),
)
CONFLICTS = _counter(
    "deadsure_claim_conflicts_total",
    "Claim statements that passed over a due task because another worker held or took it.",
    "pool",
)
FINISHES = _counter(
    "deadsure_finishes_total",
    "Finishes that were committed, refused, or found committed by reading after the answer or the worker was lost.",
    "pool",
    "outcome",
    values=(("committed", "refused", "settled_by_reading"),),
)
FINISHED = _counter(
    "deadsure_tasks_finished_total",
    "Tasks that this pool brought to a terminal state: by finish, recovery, lookup, decision or cancel.",
    "kind",
    "state",
    values=(TERMINAL_STATES,),
)
TASK_WAIT = _histogram(
    "deadsure_task_wait_seconds", "From the time at which a task might run to its claim.", WAIT, "kind"
)
TASK_RUN = _histogram("deadsure_task_run_seconds", "How long handlers took that came to an end.", RUN, "kind")
TASKS = _gauge(
    "deadsure_tasks",
    "Open tasks in the whole database; scheduled ones are queued for a later time. Take the maximum over pools.",
    "queue",
    "state",
    values=(OPEN_STATES,),
)
OLDEST_TASK = _gauge(
    "deadsure_oldest_task_seconds",
    "How long the oldest open task has been in this state: due, running or unknown.",
    "queue",
    "state",
    values=(("queued", "running", "unknown"),),
)

# --- what nobody can know, and what died

UNKNOWN_TASKS = _gauge(
    "deadsure_unknown_tasks",
    "Tasks that are unknown now, in the whole database, by what they need.",
    "kind",
    "needs",
    values=(NEEDS,),
)
UNKNOWN_OLDEST = _gauge(
    "deadsure_unknown_oldest_seconds",
    "How long the oldest unknown task has been unknown; 0 while there is none.",
    "kind",
    "needs",
    values=(NEEDS,),
)
UNKNOWN = _counter(
    "deadsure_unknown_total", "Tasks that this pool made unknown.", "kind", "cause", values=(UNKNOWN_CAUSES,)
)
RECOVERIES = _counter(
    "deadsure_recoveries_total", "Tasks that were settled because their worker was proven gone.", "proof",
    values=(PROOFS,),
)  # fmt: skip
RECOVERY = _histogram(
    "deadsure_death_to_recovered_seconds",
    "Until the recovery was committed: from the exit, from this supervisor's start (pool_lock), from the lease's end.",
    SETTLE,
    "proof",
    values=(PROOFS,),
)
LEASE_RENEWALS = _counter(
    "deadsure_lease_renewals_total",
    "Renewals of this pool's lease; failed ones had no answer.",
    "pool",
    "outcome",
    values=(("renewed", "refused", "failed"),),
)
LEASE_REMAINING = _gauge(
    "deadsure_lease_remaining_seconds",
    "Seconds for which this pool may still rely on its lease; 0 without one.",
    "pool",
)
LEASES_LOST = _counter(
    "deadsure_leases_lost_total", "Times this pool lost its lease, killed its workers and began anew.", "pool"
)
SWEPT = _counter(
    "deadsure_incarnations_swept_total",
    "Pools, of this host or another, that this pool ended because their lease was over.",
    "pool",
)

# --- effects

EFFECT_CALLS = _counter(
    "deadsure_effect_calls_total",
    "Calls of a provider that came to an end, by its answer.",
    "provider",
    "outcome",
    values=(("receipt", "rejected", "not_sent", "ambiguous", "receipt_mismatch"),),
)
RECONCILES = _counter(
    "deadsure_reconciles_total",
    "Lookups of unknown tasks, by what became of the task.",
    "provider",
    "outcome",
    values=(
        ("found", "queued", "later", "decision", "retention_passed", "mismatch", "unavailable", "moved_on"),
    ),
)  # fmt: skip
MISMATCHES = _counter(
    "deadsure_receipt_mismatches_total",
    "Receipts that do not prove the intent they were shown for, from a call or a lookup.",
    "provider",
)
RESOLUTIONS = _counter(
    "deadsure_resolutions_total",
    "Decisions of people about unknown tasks, through this pool's API.",
    "state",
    values=(TERMINAL_STATES,),
)

# --- the database

DATABASE_UP = _gauge("deadsure_database_up", "Whether the database gave this process its last answer.", "process")
DB_POOL_SIZE = _gauge("deadsure_db_pool_size", "Database connections that this process may open.", "process")
DB_POOL_IN_USE = _gauge("deadsure_db_pool_in_use", "Database connections in use in this process now.", "process")
DB_POOL_WAIT = _histogram(
    "deadsure_db_pool_wait_seconds", "How long requests waited for a database connection.", SHORT, "process"
)
DB_POOL_TIMEOUTS = _counter(
    "deadsure_db_pool_timeouts_total", "Requests that got no database connection in their time.", "process"
)
OLDEST_TRANSACTION = _gauge(
    "deadsure_oldest_transaction_seconds",
    "Age of the oldest transaction in the database that can hold back vacuum, of those that our role may see.",
)
DEAD_TUPLES = _gauge(
    "deadsure_dead_tuples", "Dead rows in a table, as PostgreSQL's statistics estimate them.", "table", values=(TABLES,)
)
FIGURES_AGE = _gauge(
    "deadsure_database_figures_age_seconds",
    "Age of the figures read from the database; beyond 30 s the figures of that part are withheld.",
    "part",
    values=(PARTS,),
)

# --- HTTP

HTTP_REQUESTS = _counter(
    "deadsure_http_requests_total", "Requests that the API has answered.", "route", "method", "code"
)
HTTP_REQUEST = _histogram(
    "deadsure_http_request_seconds",
    "From a request's head to the end of its answer; with Prefer: wait it holds that waiting too.",
    REQUEST,
    "route",
    "method",
    "code",
)

#: All of them, in the order in which they are shown.
CATALOGUE: tuple[Metric, ...] = (
    BUILD_INFO,
    WORKERS,
    POOL_SIZE,
    SATURATION,
    WORKER_EXITS,
    START_FAILURES,
    START_TIME,
    ROUND_AGE,
    ROUND,
    DEATHS_UNSETTLED,
    LINES_DROPPED,
    CLAIMS,
    CONFLICTS,
    FINISHES,
    FINISHED,
    TASK_WAIT,
    TASK_RUN,
    TASKS,
    OLDEST_TASK,
    UNKNOWN_TASKS,
    UNKNOWN_OLDEST,
    UNKNOWN,
    RECOVERIES,
    RECOVERY,
    LEASE_RENEWALS,
    LEASE_REMAINING,
    LEASES_LOST,
    SWEPT,
    EFFECT_CALLS,
    RECONCILES,
    MISMATCHES,
    RESOLUTIONS,
    DATABASE_UP,
    DB_POOL_SIZE,
    DB_POOL_IN_USE,
    DB_POOL_WAIT,
    DB_POOL_TIMEOUTS,
    OLDEST_TRANSACTION,
    DEAD_TUPLES,
    FIGURES_AGE,
    HTTP_REQUESTS,
    HTTP_REQUEST,
)
