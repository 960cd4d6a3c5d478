"""How fast a backlog is worked off: one at a time, in batches, and with an effect each."""

from __future__ import annotations

import time
from urllib.request import Request, urlopen

from ..drills.ledger_process import LedgerProcess
from ..runtime import sql
from .serving import ServedPool, serving
from .site import Site

_PACE = sql.statement("bench_pace")
_OPEN = sql.statement("bench_open")
_PATIENCE = 600.0


def drain(site: Site, what: str, tasks: int, workers: int, ledger: str = "http://127.0.0.1:1") -> float:
    """Tasks a second, of the middle eight tenths of a backlog that appears in one commit before a waiting pool."""
    site.clear()
    with serving(site, workers, ledger) as pool:
        site.fill(what, tasks)
        _until_empty(site, pool)
        total, middle, seconds = site.connection.run(_PACE, kind=site.kind(what))[0]
    assert total == tasks, f"{total} of {tasks} tasks are over"
    return float(middle / seconds)


def effects(site: Site, tasks: int, workers: int) -> tuple[float, float]:
    """Transfers a second through a sandbox ledger; and the floor: the ledger alone, asked as fast as it answers."""
    with LedgerProcess(site.folder / "ledger.jsonl", "contract", env=site.variables) as ledger:
        floor = _posts(ledger.url, min(tasks, 500))
        return drain(site, "effect", tasks, workers, ledger.url), floor


def _until_empty(site: Site, pool: ServedPool) -> None:
    pool.wait(
        lambda: not site.connection.run(_OPEN, queue=site.name)[0][0], "the backlog is worked off", _PATIENCE, 0.02
    )


def _posts(url: str, number: int) -> float:
    began = time.perf_counter()
    for n in range(number):
        head = {"Content-Type": "application/json", "Idempotency-Key": f"bench-floor-{n}"}
        with urlopen(Request(url, b'{"account":"floor","amount":1}', head, method="POST"), timeout=10) as answer:  # noqa: S310
            answer.read()
    return number / (time.perf_counter() - began)
