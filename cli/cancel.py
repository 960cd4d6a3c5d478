"""`deadsure cancel`: end a task that waits, or ask one that runs to stop."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from urllib.parse import quote

from . import client
from .options import DONE

EXAMPLES = """\
  deadsure cancel 01936f5e-8c5b-7d3e-9a51-6f0c2f1d7a10

A queued task is canceled at once. A running one is asked: it is canceled when its handler gives up, and it succeeds
when the handler has finished first.
"""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the task's id")
    client.add_options(parser)


def run(arguments: Namespace) -> int:
    """Raises Refused when the task has ended or does not exist, ServerUnavailable when nobody can say."""
    task = client.client_of(arguments).post(f"/tasks/{quote(arguments.id, safe='')}/cancel").task()
    print(task["id"], task["state"] if task["state"] == "canceled" else f"{task['state']}, cancel requested")
    return DONE
