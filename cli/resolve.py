"""`deadsure resolve`: a person's decision about an unknown task."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from urllib.parse import quote

from . import client
from .layers import OptionError
from .options import DONE

EXAMPLES = """\
  deadsure resolve 01936f5e-8c5b-7d3e-9a51-6f0c2f1d7a10 --as succeeded --evidence "bank statement 7, line 12"
  deadsure resolve 01936f5e-8c5b-7d3e-9a51-6f0c2f1d7a10 --as failed --evidence "the bank's support: never arrived"

Only an unknown task can be decided, once, and what was decided is kept with who did it. There is no way to have it run
again: submit a new task for that.
"""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the task's id")
    parser.add_argument(
        "--as", dest="state", required=True, choices=("succeeded", "failed", "canceled"), help="what it was"
    )
    parser.add_argument("--evidence", required=True, metavar="TEXT", help="how you know")
    parser.add_argument("--result", metavar="JSON", help="with --as succeeded: the result to be kept")
    parser.add_argument("--actor", metavar="NAME", help="who decides, where the API asks for no token")
    client.add_options(parser)


def run(arguments: Namespace) -> int:
    """Raises OptionError, Refused when somebody decided before or the task is not unknown, ServerUnavailable."""
    server = client.client_of(arguments)
    path = f"/tasks/{quote(arguments.id, safe='')}"
    seen = server.get(path)
    headers = {"If-Match": seen.etag or ""}
    if arguments.actor is not None:
        headers["Deadsure-Actor"] = arguments.actor
    task = server.post(f"{path}/resolution", _body(arguments), headers).task()
    print(task["id"], task["state"])
    return DONE


def _body(arguments: Namespace) -> str:
    body = {"state": arguments.state, "evidence": arguments.evidence}
    if arguments.result is not None:
        try:
            body["result"] = json.loads(arguments.result)
        except ValueError as error:
            raise OptionError(f"--result: this is not JSON: {error}") from None
    return json.dumps(body)
