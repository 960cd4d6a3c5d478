"""The README's picture: panels of the shipped dashboard, plotted from what a real Prometheus saw during a drill.

Some 25 minutes in real time, with the rules as they are shipped: steady work on four workers, a SIGKILL of a busy
one every 20 seconds or so for ten minutes, and one task that a kill leaves unknown and nobody decides until its alert
fires.

    python3 -m venv /tmp/plot && /tmp/plot/bin/pip install -e '.[dev]' matplotlib
    PYTHONPATH=.ci/path:tests /tmp/plot/bin/python benchmarks/picture.py

`--minutes 3` divides all times of the drill, and of that one rule. Such a picture is not the one to show.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib
from deadsure.runtime import db, dsn
from deadsure.runtime.store import migrate
from kit import postgres
from kit.dashboard import PANELS, asked, named
from kit.pool import ROOT
from kit.rules import sooner
from kit.wait import wait_until
from kit.watched import Watched, watched

matplotlib.use("Agg")
from matplotlib import dates, pyplot

#: The panels to be shown, by their titles, with what their numbers are divided by and the unit that is then written.
SHOWN = {
    "Tasks that ended": (1, "a second"),
    "Workers that ended": (1, "in a minute"),
    "Lookups": (1, "in a minute"),
    "Unknown tasks": (1, "now"),
    "Age of the oldest unknown task": (60, "in minutes"),
}
ALERT = "DeadsureUnknownTooOld"
LENGTH = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=LENGTH)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "assets" / "drill.png")
    arguments = parser.parse_args()
    faster = LENGTH / arguments.minutes
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres.running_server(durable=True) as server,
        postgres.database(server) as address,
    ):
        settings = db.Settings(dsn.parse(address))
        connection = db.connect(settings, "picture")
        migrate.migrate(connection)
        connection.close()
        with watched(settings, Path(folder), rules=sooner(faster, ALERT), every=5 / faster, workers=4) as seen:
            decided = drill(seen, arguments.minutes * 60)
            plot(seen, decided, 60 / faster, arguments.to)
    return 0


def drill(seen: Watched, length: float) -> float:
    """The whole drill, in less than `length` seconds. Returns when the unknown task was decided, in Unix time."""
    seen.ledger.kill()
    seen.ledger.start("slow")
    stop = threading.Event()
    crowd = threading.Thread(target=_submit, args=(seen, stop))
    crowd.start()
    try:
        time.sleep(length / 15)
        unknown = seen.kill()
        until = time.time() + length / 3
        while time.time() < until:
            time.sleep(length / 90)
            _kill_a_busy_one(seen)
        wait_until(lambda: ALERT in seen.prometheus.firing(), "the alert fires", length)
        time.sleep(length / 15)
        _decide(seen, unknown)
        decided = time.time()
        time.sleep(length / 10)
    finally:
        stop.set()
        crowd.join()
    return decided


def _submit(seen: Watched, stop: threading.Event) -> None:
    """Some tasks each second: short ones, and transfers, of which the ledger makes each last a second."""
    tasks = [{"kind": "text.analyze", "payload": {"text": "to be"}}] * 15
    tasks += [{"kind": "ledger.transfer", "payload": {"account": "a", "amount": 1}}] * 2
    while not stop.wait(1):
        seen.pool.post("/tasks/batch", {"tasks": tasks})


def _kill_a_busy_one(seen: Watched) -> None:
    def busy() -> list[int]:
        workers = seen.pool.get("/workers").body["workers"]
        return [worker["pid"] for worker in workers if worker["task"]]

    with suppress(ProcessLookupError):
        os.kill(random.choice(wait_until(busy, "somebody works")), signal.SIGKILL)


def _decide(seen: Watched, unknown: str) -> None:
    tag = seen.pool.get(f"/tasks/{unknown}").headers["ETag"]
    decision = {"state": "failed", "evidence": "it was killed for a picture"}
    answer = seen.pool.post(f"/tasks/{unknown}/resolution", decision, {"If-Match": tag})
    assert answer.status == 200, answer


def plot(seen: Watched, decided: float, window: float, to: Path) -> None:
    """Draw it, with rates and increases over `window` seconds, and write it to the file `to`."""
    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = pyplot.subplots(len(SHOWN), sharex=True, figsize=(10, 8.5), layout="constrained")
    for axis, (title, (divisor, unit)) in zip(axes, SHOWN.items(), strict=True):
        panel = next(panel for panel in PANELS if panel["title"] == title)
        _draw(axis, panel, seen, divisor, window)
        axis.axvline(_time(decided), color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{title}, {unit}", loc="left", fontweight="bold")
        axis.set_ylim(bottom=0)
    _mark_the_alert(axes[-1], seen)
    axes[0].text(_time(decided), axes[0].get_ylim()[1] / 3, " a person\n decides", fontsize=8, va="center")
    for axis in axes:
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)
    axes[-1].xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    to.parent.mkdir(exist_ok=True)
    figure.savefig(to, dpi=100, metadata={"Software": None})
    print(f"{to}: {to.stat().st_size} bytes")


def _draw(axis: Any, panel: dict[str, Any], seen: Watched, divisor: float, window: float) -> None:
    """The panel's lines; where Grafana draws bars, bars on top of each other, one a window."""
    bars = panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] == "bars"
    below: dict[datetime, float] = {}
    for target in panel["targets"]:
        expression = asked(target["expr"], window=window, whole=window)
        for series in seen.seen(expression, window if bars else None):
            if not any(series.numbers):
                continue
            times = [_time(at) for at, _ in series.samples]
            values = [value / divisor for _, value in series.samples]
            label = named(series, target["legendFormat"])
            if bars:
                bottom = [below.get(at, 0.0) for at in times]
                axis.bar(times, values, -0.8 * window / 86_400, bottom, align="edge", label=label)
                below |= {at: under + value for at, under, value in zip(times, bottom, values, strict=True)}
            else:
                axis.plot(times, values, label=label, linewidth=1.2)


def _mark_the_alert(axis: Any, seen: Watched) -> None:
    for series in seen.seen(f'ALERTS{{alertname="{ALERT}", alertstate="firing"}}'):
        first, last = series.samples[0][0], series.samples[-1][0]
        axis.axvspan(_time(first), _time(last), color="red", alpha=0.15, linewidth=0, label=f"{ALERT} fires")


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at).astimezone()


if __name__ == "__main__":
    sys.exit(main())
