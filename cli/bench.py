"""`deadsure bench`: throughput and latency, each beside its floor measured on the same database in the same run."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, replace

from ..bench import run as bench
from ..bench import site
from ..bench.run import Plan
from ..runtime.errors import ConfigurationError
from .layers import OptionError
from .options import DONE, add_data, hear_interrupts, load_config, say
from .staging import database, migrated, variables
from .wiring import database_settings

#: Less measures nothing.
LEAST = {"tasks": 500, "workers": 1, "kills": 2, "pickups": 2, "rounds": 1}

EXAMPLES = """\
  deadsure bench                        about a minute, on the configured database or an embedded one
  deadsure bench --tasks 50000 --json   longer, as JSON

It works in a queue of its own and removes its rows. Ratios are to be compared, not figures of different machines.
"""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--tasks", metavar="N", type=int, default=Plan().tasks, help="the backlog; default 6000")
    parser.add_argument("--workers", metavar="N", type=int, default=Plan().workers, help="workers; default 2")
    parser.add_argument("--kills", metavar="N", type=int, default=Plan().kills, help="workers killed; default 50")
    parser.add_argument("--pickups", metavar="N", type=int, default=Plan().pickups, help="fresh tasks; default 100")
    parser.add_argument("--rounds", metavar="N", type=int, default=Plan().rounds, help="rounds of submits; default 3")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_data(parser)


def run(arguments: Namespace) -> int:
    """Raises ConfigurationError, also where drills are not allowed, NoDatabase, BenchFailed or StoreError."""
    config = load_config(arguments)
    if not config.drills.enabled:
        raise ConfigurationError("drills are switched off here ([drills] enabled = false); nothing was started")
    sizes = {name: getattr(arguments, name) for name in ("tasks", "workers", "kills", "pickups", "rounds")}
    for name, least in LEAST.items():
        if sizes[name] < least:
            raise OptionError(f"--{name} must be at least {least}; nothing was measured")
    plan = replace(Plan(), **sizes)
    hear_interrupts()
    with database(config, arguments.data) as settled:
        migrated(settled)
        with site.made(database_settings(settled), variables(settled, arguments), _tell) as place:
            figures = bench.run(place, plan)
    print(json.dumps(asdict(figures)) if arguments.json else bench.table(figures))
    return DONE


def _tell(text: str) -> None:
    """Progress, where somebody looks."""
    if sys.stderr.isatty():
        say(text)
