"""`deadsure drill`: harm on purpose, on the configured (staging) database or an embedded one; then the facts.

A drill kills only processes that it has started, works in a queue of its own, and removes its rows.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path

from ..drills import checker, kill, matrix, report
from ..drills.kill import Site
from ..drills.plan import CONFIRMS, PROVIDERS, Plan
from ..runtime.errors import ConfigurationError
from ..runtime.points import POINTS
from .options import DONE, FAILED, hear_interrupts, load_config, say
from .staging import database, migrated, variables
from .wiring import database_settings

EXAMPLES = """\
  deadsure drill kill --window after_claim --provider contract     kill -9 before anything was sent
  deadsure drill kill --window after_tool --provider none --full   after it was done, and nobody can be asked
  deadsure drill kill --window after_tool --provider contract --confirm lease
  deadsure drill matrix --sample 20                                20 of the 180 kills there are, as a table

`kill` prints one JSON line and exits with 0 when it is what the provider's contract promises, else with 1.
"""


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
    for command in (one, many):
        command.add_argument("--confirm", choices=CONFIRMS, default="exit", help="what proves the death; default exit")
        command.add_argument("--keep", action="store_true", help="leave the drill's rows and files")
        command.add_argument("--data", metavar="DIR", type=Path, help="where the embedded PostgreSQL keeps its data")
        command.add_argument("--config", metavar="FILE", default=SUPPRESS, help="the configuration, TOML")


def run(arguments: Namespace) -> int:
    """Raises ConfigurationError, also when drills are not allowed here, NoDatabase, DrillFailed or StoreError."""
    config = load_config(arguments)
    if not config.drills.enabled:
        raise ConfigurationError("drills are switched off here ([drills] enabled = false); nothing was started")
    hear_interrupts()
    with database(config, arguments.data) as settled:
        migrated(settled)
        site = Site(database_settings(settled), variables(settled, arguments), say, arguments.keep)
        code: int = arguments.drill(site, arguments)
        return code


def _kill(site: Site, arguments: Namespace) -> int:
    plan = Plan.make(arguments.window, arguments.provider, arguments.confirm)
    facts = kill.run(site, plan)
    verdict = checker.judge(plan, facts)
    print(report.line(facts, full=arguments.full), flush=True)
    for text in verdict.why:
        say(text)
    return DONE if verdict.value is True else FAILED


def _matrix(site: Site, arguments: Namespace) -> int:
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
