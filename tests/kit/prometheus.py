"""A real Prometheus server on a free port, with a data folder of its own, and promtool; both of Debian's package.

Only the programs are used: the package's own service is neither needed nor touched.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from .postgres import free_port
from .wait import wait_until


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus)")
    return found


def promtool(*words: str, stdin: str = "") -> str:
    """What promtool printed. The test fails unless it found nothing wrong, and nothing to warn of."""
    ran = subprocess.run(
        [program("promtool"), *words], input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == "", ran.stdout + ran.stderr
    return ran.stdout


@dataclass(frozen=True)
class Series:
    """One series of an answer: its labels, and its samples, oldest first."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]

    @property
    def numbers(self) -> list[float]:
        """The samples' values that are numbers: a quantile of nothing is none."""
        return [value for _, value in self.samples if not math.isnan(value)]


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    port: int
    log: Path

    def ask(self, path: str, **parameters: object) -> Any:
        """The `data` of an answer of its HTTP API. A refusal fails the test."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None

    def now(self, expression: str) -> list[Series]:
        """The value of an expression now."""
        found = self.ask("query", query=expression)["result"]
        return [_series(entry["metric"], [entry["value"]]) for entry in found]

    def range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """The values of an expression from `start` to `end`, in Unix time."""
        found = self.ask("query_range", query=expression, start=start, end=end, step=step)["result"]
        return [_series(entry["metric"], entry["values"]) for entry in found]

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """The labels of what fires now, by the alert's name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self.ask("alerts")["alerts"]:
            if alert["state"] == "firing":
                labels = dict(alert["labels"])
                found.setdefault(labels.pop("alertname"), []).append(labels)
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Every rule as it has read it, with `health` and `lastError`."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


def _series(labels: dict[str, str], samples: list[tuple[float, str]]) -> Series:
    return Series(labels, [(at, float(value)) for at, value in samples])


@contextmanager
def running(config: Path, folder: Path) -> Iterator[Prometheus]:
    """A server with this configuration, which keeps its data in `folder`. At the end it is gone, by pid."""
    server = Prometheus(free_port(), folder / "prometheus.log")
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{server.port}",
        "--log.level=warn",
    ]
    with server.log.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
    try:
        wait_until(lambda: _ready(server, process), "Prometheus is ready", 30)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _ready(server: Prometheus, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, server.log.read_text()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/-/ready", timeout=5):
            return True
    except (OSError, HTTPException):
        return False
