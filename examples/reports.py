"""An application of one's own: `deadsure up --app examples.reports:app`, from the folder above this one.

Then, in another terminal:

    deadsure submit report.build '{"day": "2026-11-30", "rows": 1000}' --wait 30
    deadsure submit letter.print '{"to": "Ada"}' --wait 30
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from datetime import date

from deadsure import App, Context

app = App()


@dataclass
class Report:
    """What `report.build` takes. A payload that does not look like this is refused at submit."""

    day: date
    rows: int = 100


# The same report comes out however often it is built, and nobody is told of it: so a build whose worker died may
# simply be run again, up to three times in all.
@app.task("report.build", on_death="requeue", max_attempts=3, timeout=60)
def build(payload: Report, ctx: Context) -> dict[str, object]:
    """Pretend to build a report, and stop early when that is asked for."""
    digest = hashlib.sha256()
    for row in range(payload.rows):
        ctx.raise_if_canceled()
        digest.update(f"{payload.day} {row}\n".encode())
    return {"day": payload.day.isoformat(), "rows": payload.rows, "sha256": digest.hexdigest()}


# A letter that was printed cannot be unprinted. If the worker dies in here nobody can say whether it was: the task
# becomes `unknown`, and a person who looks into the tray decides. That is the default.
@app.task("letter.print")
async def print_letter(payload: dict[str, str]) -> dict[str, str]:
    """Pretend to print a letter. A handler may also be a coroutine."""
    await asyncio.sleep(0.1)
    return {"printed": f"Dear {payload['to']}"}
