"""One run of all measurements, in an order in which none disturbs the next; and how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from . import drain, floor, latency, submitting
from .latency import Spread
from .site import Site

CONNECTIONS = (1, 8, 32)
PICKUP_RATE = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `tasks` is the backlog that is worked off one at a time."""

    tasks: int = 6000
    workers: int = 2
    kills: int = 50
    pickups: int = 100
    rounds: int = 3
    seconds: float = 1.0


@dataclass(slots=True)
class Figures:
    """What was measured: `results` and the `floor` beside each, in tasks or requests a second; and the ratios.

    Latencies are milliseconds.
    """

    floor: dict[str, float | str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, rate: float, floor: float | None = None, ratio: tuple[str, float] | None = None) -> None:
        self.results[name] = round(rate, 1)
        if floor is not None:
            self.floor[name] = round(floor, 1)
        if ratio is not None:
            self.ratios[ratio[0]] = round(ratio[1], 3)


def run(site: Site, plan: Plan) -> Figures:
    """Measure everything. Raises BenchFailed or StoreError."""
    figures = Figures()
    _drains(site, plan, figures)
    _submits(site, plan, figures)
    _latencies(site, plan, figures)
    return figures


def _drains(site: Site, plan: Plan, figures: Figures) -> None:
    site.tell("the floor: finish and claim, one at a time")
    measured_by, bottom = floor.single(site, plan.workers, plan.tasks)
    figures.floor["measured_by"] = measured_by
    site.tell("one at a time")
    single = drain.drain(site, "single", plan.tasks, plan.workers)
    figures.add("drain_single", single, bottom, ("drain_single_vs_floor", single / bottom))
    site.tell("in batches")
    batch = drain.drain(site, "batch", plan.tasks * 5, plan.workers)
    figures.add("drain_batch", batch, None, ("drain_batch_vs_single", batch / single))
    site.tell("effects at the sandbox ledger")
    effect, ledger = drain.effects(site, max(plan.tasks // 6, 100), plan.workers)
    figures.add("drain_effect", effect, ledger, ("drain_effect_vs_ledger", effect / ledger))


def _submits(site: Site, plan: Plan, figures: Figures) -> None:
    for connections in CONNECTIONS:
        site.tell(f"submit over HTTP, {connections} connections")
        rate, bottom, ratio = submitting.over_http(site, connections, plan.rounds, plan.seconds)
        name = f"http_submit_{connections}"
        figures.add(name, rate, bottom, (f"{name}_vs_no_database", ratio))
    site.tell("bulk submit")
    rate, bottom, ratio = submitting.bulk(site, plan.tasks, plan.rounds)
    figures.add("bulk_submit", rate, bottom, ("bulk_submit_vs_floor", ratio))


def _latencies(site: Site, plan: Plan, figures: Figures) -> None:
    site.tell("pick-up of fresh tasks")
    _spread(figures, "pickup_ms", latency.pickups(site, plan.pickups, PICKUP_RATE, plan.workers))
    site.tell("recovery of killed workers' tasks")
    _spread(figures, "recovery_ms", latency.recoveries(site, plan.kills, plan.workers))


def _spread(figures: Figures, name: str, spread: Spread) -> None:
    figures.results[name] = asdict(spread)


_ROWS = [
    ("one at a time, tasks/s", "drain_single", "drain_single_vs_floor"),
    ("in batches, tasks/s", "drain_batch", "drain_batch_vs_single"),
    ("effects at the sandbox ledger, tasks/s", "drain_effect", "drain_effect_vs_ledger"),
    *((f"HTTP submit, {n} connections, requests/s", f"http_submit_{n}", f"http_submit_{n}_vs_no_database")
      for n in CONNECTIONS),
    ("bulk submit, rows/s", "bulk_submit", "bulk_submit_vs_floor"),
]  # fmt: skip


def table(figures: Figures) -> str:
    """For people."""
    lines = [f"{'':42}{'measured':>10}{'floor':>10}{'ratio':>8}"]
    for label, name, ratio in _ROWS:
        bottom = figures.floor.get(name)
        shown = "" if bottom is None else f"{bottom:.0f}"
        lines.append(f"{label:42}{figures.results[name]:>10.0f}{shown:>10}{figures.ratios[ratio]:>8.2f}")
    for label, name in (("pick-up of a fresh task", "pickup_ms"), ("death to the committed verdict", "recovery_ms")):
        spread = figures.results[name]
        lines.append(f"{label:42}p50 {spread['p50']:.1f} ms, p99 {spread['p99']:.1f} ms, most {spread['most']:.1f} ms")
    lines.append(
        f"Floors: the same statement by {figures.floor['measured_by']}; the ledger alone; the same route without a "
        "database; a bare INSERT. In batches: the ratio is to one at a time."
    )
    return "\n".join(lines)
