"""`deadsure submit`: one task, and perhaps its end."""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any
from urllib.parse import quote

from . import client, task_text
from .client import Client, Refused, ServerUnavailable
from .layers import OptionError
from .options import DONE, FAILED, say

EXAMPLES = """\
  deadsure submit text.analyze '{"text": "to be, or not to be"}'
  deadsure submit text.analyze '{"text": "to be"}' --wait 10      exit code 0 only if it succeeded
  deadsure submit report.build '{"day": "2026-11-30"}' --key report-2026-11-30
  deadsure submit report.build '{"day": "2026-12-01"}' --run-at 2026-12-01T06:00:00Z --queue nightly
  deadsure submit text.analyze - < payload.json

It prints the task's id. With --key the same call can be repeated and stores one task only.
"""

#: What the kind decides unless the caller does; named as in the API.
_CHOICES = ("queue", "priority", "run_at", "max_attempts")
#: The API waits no longer than this for one request: seconds.
_LONGEST_WAIT = 30
_PAUSE = 0.2


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help="what to do")
    parser.add_argument("payload", metavar="JSON", help="its payload; - reads it from the standard input")
    parser.add_argument("--key", metavar="K", help="the Idempotency-Key: a repeat gives the task that is there")
    parser.add_argument("--queue", metavar="Q", help="else the kind's")
    parser.add_argument("--priority", metavar="N", type=int, help="smaller is sooner; else the kind's")
    parser.add_argument("--run-at", metavar="T", help="not before: RFC 3339, with its zone")
    parser.add_argument("--max-attempts", metavar="N", type=int, help="else the kind's")
    parser.add_argument("--wait", metavar="S", type=float, help="wait up to S seconds for its end, and show it")
    client.add_options(parser)


def run(arguments: Namespace) -> int:
    """Raises OptionError, Refused or ServerUnavailable."""
    if arguments.wait is not None and not (math.isfinite(arguments.wait) and arguments.wait >= 0):
        raise OptionError("--wait: expected a number of seconds")
    server = client.client_of(arguments)
    payload = _checked(sys.stdin.read() if arguments.payload == "-" else arguments.payload)
    # The payload's own text goes into the body: decoded and encoded again, a number could come out as another one.
    chosen = {name: getattr(arguments, name) for name in ("kind", *_CHOICES) if getattr(arguments, name) is not None}
    body = f'{json.dumps(chosen)[:-1]}, "payload": {payload}}}'
    headers = {} if arguments.key is None else {"Idempotency-Key": _key(arguments.key)}
    task = server.post("/tasks", body, headers).task()
    print(task["id"], flush=True)
    return DONE if arguments.wait is None else _await(server, task, arguments.wait)


def _await(server: Client, task: dict[str, Any], seconds: float) -> int:
    """Show the task when it is settled or the time is over. 0 when it has succeeded."""
    until = time.monotonic() + seconds
    while task["state"] not in task_text.SETTLED and (left := until - time.monotonic()) > 0:
        asked = time.monotonic()
        task = _look(server, task, left)
        if time.monotonic() - asked < _PAUSE:
            time.sleep(min(_PAUSE, left))
    print(task_text.lines({name: value for name, value in task.items() if name != "id"}))
    if task["state"] not in task_text.SETTLED:
        say(f"after {seconds:g} s it is still {task['state']}; it goes on: deadsure show {task['id']}")
    return DONE if task["state"] == "succeeded" else FAILED


def _look(server: Client, task: dict[str, Any], left: float) -> dict[str, Any]:
    """The task as it is now. Within the time a busy or restarting server is asked again: the task is stored."""
    wait = min(_LONGEST_WAIT, math.ceil(left))
    try:
        return server.get(f"/tasks/{quote(task['id'], safe='')}", {"Prefer": f"wait={wait}"}, wait).task()
    except ServerUnavailable:
        if left <= 1.0:
            raise
    except Refused as error:
        if error.status != 429:
            raise
    time.sleep(min(1.0, left))
    return task


def _checked(text: str) -> str:
    """The payload's text, when it is JSON. Raises OptionError."""
    try:
        json.loads(text, parse_constant=_no_constant)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the payload is not JSON: {error}") from None
    return text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _key(key: str) -> str:
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable() or " " in key:
        raise OptionError("--key: expected 1 to 255 visible ASCII characters")
    return key
