"""What `deadsure up` says when it is ready: where everything is, and what to try next."""

from __future__ import annotations

import shutil
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from ..runtime import dsn
from .address import Address
from .config import DEFAULT_URL, Config
from .embedded import EmbeddedPostgres

_DEMO = """\
Try this in another terminal:

  {deadsure} submit text.analyze '{{"text": "to be, or not to be"}}'{url} --wait 10
  curl -s {base}/tasks -H 'Content-Type: application/json'{token} \\
       -d '{{"kind": "sleep", "payload": {{"seconds": 600}}}}'
  curl -s {base}/workers{token}       # the pid of the worker that sleeps
  kill -9 PID                                 # nobody can say what it did: the task becomes unknown
  {deadsure} list --state unknown{url}
  {deadsure} show ID{url}
"""
_OWN = """\
Try this in another terminal:

  {deadsure} submit KIND '{{"your": "payload"}}'{url}
  {deadsure} list{url}
  curl -s {base}/workers{token}
"""


def ready(config: Config, address: Address, postgres: EmbeddedPostgres | None) -> bool:
    """Once the API says that it is ready, print what to try; False: not yet."""
    if not _answers(address.reachable):
        return False
    database = f"PostgreSQL in {postgres.data}" if postgres else _shown(config)
    print(f"\ndeadsure is ready: API on http://{address}, {config.pool.workers} workers, {database}\n")
    print(_text(config, address), flush=True)
    return True


def _answers(address: Address) -> bool:
    connection = HTTPConnection(address.host, address.port, timeout=0.5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _shown(config: Config) -> str:
    return str(dsn.parse(config.database.dsn)) if config.database.dsn else "no database"


def _text(config: Config, address: Address) -> str:
    base = f"http://{address.reachable}"
    text = _DEMO if config.app == "deadsure.drills.demo:app" else _OWN
    return text.format(
        deadsure=_program(),
        base=base,
        url="" if base == DEFAULT_URL else f" --url {base}",
        token=" -H 'Authorization: Bearer TOKEN'" if config.auth.tokens_file else "",
    )


def _program() -> str:
    """How this command was called, so that the lines can be copied as they are."""
    called = Path(sys.argv[0])
    if called.name != "deadsure":
        return f"{sys.executable} -m deadsure"
    return "deadsure" if shutil.which("deadsure") else str(called)
