"""What metrics, black box and before-call check cost together: the same backlog with them and without, in turns.

    python benchmarks/overhead.py               two minutes; prints a table

Starts its own PostgreSQL (durable: fsync on). Only this measurement can switch them off.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace

import place
from deadsure.bench import bare, drain
from deadsure.bench.site import Site

Drain = Callable[[Site, int], float]
CASES: dict[str, tuple[Drain, float]] = {
    "one at a time": (lambda site, tasks: drain.drain(site, "single", tasks, 2), 1.0),
    "in batches": (lambda site, tasks: drain.drain(site, "batch", tasks, 2), 10.0),
    "effects at the sandbox ledger": (lambda site, tasks: drain.effects(site, tasks, 2)[0], 0.25),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=4000)
    arguments = parser.parse_args()
    with place.made(lambda text: None) as site:
        print(f"{'tasks/s':32}{'with':>10}{'without':>10}{'overhead':>10}")
        for name, (measure, share) in CASES.items():
            show(name, *beside(site, measure, int(arguments.tasks * share), arguments.rounds))
    return 0


def beside(site: Site, measure: Drain, tasks: int, rounds: int) -> tuple[list[float], list[float]]:
    """Rates with and without, in turns."""
    without = replace(site, variables={**site.variables, bare.BARE: "1"})
    pairs = [(measure(site, tasks), measure(without, tasks)) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def show(name: str, ours: list[float], bare_ones: list[float]) -> None:
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, bare_ones, strict=True))
    print(f"{name:32}{statistics.median(ours):>10.0f}{statistics.median(bare_ones):>10.0f}{ratio:>10.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
