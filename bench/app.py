"""The application of a measurement's pool: handlers that do nothing, so that only the runtime is measured."""

from __future__ import annotations

import os
import time
from typing import Any

from ..drills.modes import contract_of
from ..runtime.effects import Intent
from ..runtime.handlers import App
from ..runtime.http_provider import HttpProvider
from . import bare

#: The environment's words: the measurement's name, and where its ledger listens.
NAME = "DEADSURE_BENCH_NAME"
LEDGER = "DEADSURE_BENCH_LEDGER"


def make(name: str, ledger: str = "http://127.0.0.1:1") -> App:
    """The kinds of the measurement `name`, all in the queue of that name."""
    made = App()

    @made.task(f"{name}.single", on_death="fail", queue=name)
    def single(payload: Any) -> dict[str, int]:
        return {"done": 1}

    @made.task(f"{name}.batch", on_death="requeue", max_attempts=3, queue=name)
    def batch(payload: Any) -> dict[str, int]:
        return {"done": 1}

    @made.task(f"{name}.wait", on_death="fail", queue=name)
    def wait(payload: Any) -> None:
        time.sleep(3600)

    provider = HttpProvider(ledger, name=name, contract=contract_of("contract"))

    @made.effect(f"{name}.effect", provider=provider, queue=name)
    def effect(payload: Any) -> Intent:
        return Intent(account="bench", amount=1)

    return made


if bare.BARE in os.environ:
    bare.strip()
if NAME in os.environ:
    app = make(os.environ[NAME], os.environ[LEDGER])
