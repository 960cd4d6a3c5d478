"""`deadsure show`: one task as it is now, and what happened to it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from urllib.parse import quote

from . import client, task_text
from .options import DONE

EXAMPLES = """\
  deadsure show 01936f5e-8c5b-7d3e-9a51-6f0c2f1d7a10
  deadsure show ID --events
  deadsure show ID --json | jq .state
"""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the task's id")
    parser.add_argument("--json", action="store_true", help="as the API answers")
    parser.add_argument("--events", action="store_true", help="also what happened to it outside the normal path")
    client.add_options(parser)


def run(arguments: Namespace) -> int:
    """Raises Refused when there is no such task, ServerUnavailable when nobody can say."""
    server, path = client.client_of(arguments), f"/tasks/{quote(arguments.id, safe='')}"
    answer = server.get(path)
    print(answer.text if arguments.json else task_text.lines(answer.task()))
    if arguments.events:
        happened = server.get(f"{path}/events")
        print(happened.text if arguments.json else task_text.events(happened.page("events")))
    return DONE
