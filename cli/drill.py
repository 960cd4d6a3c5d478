"""`deadsure drill`: harm on purpose, on the configured (staging) database or an embedded one; then the facts.

A drill kills only processes that it has started, works in a queue of its own, and removes its rows.
"""

from __future__ import annotations

import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from ..drills import checker, kill, matrix, report
from ..drills.kill import Site
from ..drills.plan import CONFIRMS, PROVIDERS, Plan
from ..drills.soak import report as soak_report
from ..drills.soak import run as soak
from ..drills.soak.plan import SoakPlan
from ..drills.soak.run import SoakSite
from ..runtime.errors import ConfigurationError
from ..runtime.points import POINTS
from .config import Config
from .embedded import EmbeddedPostgres
from .options import DONE, FAILED, add_data, hear_interrupts, load_config, say
from .staging import migrated, own_or_other, variables
from .wiring import database_settings

EXAMPLES = """\
  deadsure drill kill --window after_claim --provider contract     kill -9 before anything was sent
  deadsure drill kill --window after_tool --provider none --full   after it was done, and nobody can be asked
  deadsure drill kill --window after_tool --provider contract --confirm lease
  deadsure drill matrix --sample 20                                20 of the 180 kills there are, as a table
  deadsure drill soak --kills 1000                                 random harm under traffic, then the judge

`kill` prints one JSON line and exits with 0 when it is what the provider's contract promises, else with 1. `soak` exits
with 0 when every invariant was seen to hold.
"""

#: Seconds for which a database that was crashed stays away.
_OUTAGE = 0.5


def add_options(parser: ArgumentParser) -> None:
    drills = parser.add_subparsers(metavar="DRILL", required=True)
    one = drills.add_parser("kill", help="one kill, and its fact table", allow_abbrev=False)
    one.add_argument("--window", required=True, choices=POINTS, help="where the worker is killed")
    one.add_argument("--provider", required=True, choices=PROVIDERS, help="what the ledger promises")
    one.add_argument("--full", action="store_true", help="print the whole fact table")
    one.set_defaults(drill=_kill)
    many = drills.add_parser("matrix", help="every kill there is, as a table", allow_abbrev=False)
    many.add_argument("--sample", metavar="N", type=int, help="only so many")
    many.add_argument("--seed", metavar="S", type=int, default=0, help="chooses the sample; default 0")
    many.add_argument("--jobs", metavar="N", type=int, default=2, help="so many at a time; default 2")
    many.set_defaults(drill=_matrix)
    long = drills.add_parser(
        "soak", help="random harm under traffic, and a judge of all that was seen", allow_abbrev=False
    )
    long.add_argument("--kills", metavar="N", type=_positive, default=1000, help="how many; default 1000")
    long.add_argument("--seed", metavar="S", type=int, help="decides which harm comes when; default: a new one")
    long.add_argument("--json", action="store_true", help="end with one JSON line")
    long.set_defaults(drill=_soak)
    for command in (one, many):
        command.add_argument("--confirm", choices=CONFIRMS, default="exit", help="what proves the death; default exit")
    for command in (one, many, long):
        command.add_argument("--keep", action="store_true", help="leave the drill's rows and files")
        add_data(command)
        command.add_argument("--config", metavar="FILE", default=SUPPRESS, help="the configuration, TOML")


def run(arguments: Namespace) -> int:
    """Raises ConfigurationError, also when drills are not allowed here, NoDatabase, DrillFailed or StoreError."""
    config = load_config(arguments)
    if not config.drills.enabled:
        raise ConfigurationError("drills are switched off here ([drills] enabled = false); nothing was started")
    hear_interrupts()
    with _data(config, arguments) as data, own_or_other(config, data) as (settled, own):
        migrated(settled)
        site = Site(database_settings(settled), variables(settled, arguments), say, arguments.keep)
        code: int = arguments.drill(site, arguments, own)
        return code


@contextmanager
def _data(config: Config, arguments: Namespace) -> Iterator[Path | None]:
    """Where an embedded PostgreSQL keeps its data. A soak crashes it, so it brings one that holds nothing else."""
    if arguments.drill is not _soak or config.database.dsn is not None or arguments.data is not None:
        yield arguments.data
        return
    folder = Path(mkdtemp(prefix="deadsure-soak-"))
    try:
        folder.chmod(0o755)  # as root, PostgreSQL runs as somebody else
        yield folder / "data"
    finally:
        if arguments.keep:
            say(f"kept: the PostgreSQL in {folder}")
        else:
            rmtree(folder, ignore_errors=True)


def _kill(site: Site, arguments: Namespace, own: EmbeddedPostgres | None) -> int:
    plan = Plan.make(arguments.window, arguments.provider, arguments.confirm)
    facts = kill.run(site, plan)
    verdict = checker.judge(plan, facts)
    print(report.line(facts, full=arguments.full), flush=True)
    for text in verdict.why:
        say(text)
    return DONE if verdict.value is True else FAILED


def _matrix(site: Site, arguments: Namespace, own: EmbeddedPostgres | None) -> int:
    plans = matrix.plans(arguments.confirm, arguments.sample, arguments.seed)
    quiet = replace(site, tell=lambda _: None)
    say(f"{len(plans)} kills, {arguments.jobs} at a time")
    print(report.header(), flush=True)
    counted: Counter[object] = Counter()
    for plan, facts, verdict in matrix.hold(quiet, plans, arguments.jobs):
        print(report.row(plan, facts, verdict), flush=True)
        counted[str(verdict.value)] += 1
    print(f"{len(plans)} kills: {counted['True']} ok, {counted['False']} wrong, {counted['unknown']} unknown")
    return DONE if counted["True"] == len(plans) else FAILED


def _soak(site: Site, arguments: Namespace, own: EmbeddedPostgres | None) -> int:
    plan = SoakPlan.make(arguments.kills, arguments.seed)
    say(f"{plan.kills} kills from the seed {plan.seed}, in the queue {plan.name}")
    crash = None if own is None else _crash(own)
    ended = soak.run(SoakSite(site.database, site.variables, say, crash, site.keep), plan)
    print(soak_report.text(plan, ended.facts, ended.faults, ended.judgement, ended.seconds))
    print("\n".join(ended.figures), flush=True)
    if arguments.json:
        print(soak_report.line(plan, ended.kills, ended.judgement), flush=True)
    return DONE if ended.judgement.value is True else FAILED


def _crash(own: EmbeddedPostgres) -> Callable[[], None]:
    """Bring our own server down by SIGKILL, and after a while up again."""

    def crash() -> None:
        own.kill()
        time.sleep(_OUTAGE)
        own.start()

    return crash


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
