"""`deadsure reconcile`: have unknown tasks looked up at their provider now."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from . import client
from .client import Client, Refused
from .layers import OptionError
from .options import DONE, FAILED, say

EXAMPLES = """\
  deadsure reconcile 01936f5e-8c5b-7d3e-9a51-6f0c2f1d7a10
  deadsure reconcile --all --provider bank

The lookup is made by a worker, soon; `deadsure show ID` tells what came of it. A task whose provider offers no way out
needs a decision: `deadsure resolve`.
"""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="the task's id")
    parser.add_argument("--all", action="store_true", help="every unknown task of one provider")
    parser.add_argument("--provider", metavar="P", help="with --all: the provider's name")
    client.add_options(parser)


def run(arguments: Namespace) -> int:
    """Raises OptionError, Refused when a single task cannot be looked up, ServerUnavailable when nobody can say."""
    server = client.client_of(arguments)
    if arguments.all:
        if arguments.id is not None or arguments.provider is None:
            raise OptionError("--all goes with --provider, and without an ID")
        return _all(server, arguments.provider)
    if arguments.id is None or arguments.provider is not None:
        raise OptionError("name a task's ID, or --all --provider P")
    _ask(server, arguments.id)
    return DONE


def _ask(server: Client, id: str) -> None:
    task = server.post(f"/tasks/{quote(id, safe='')}/reconcile").task()
    print(task["id"], "is being looked up")


def _all(server: Client, provider: str) -> int:
    asked = refused = 0
    for task in _unknown(server):
        if (task.get("effect") or {}).get("provider") != provider:
            continue
        try:
            _ask(server, task["id"])
            asked += 1
        except Refused as error:
            refused += 1
            say(f"{task['id']}: {error}")
    print(f"{asked} looked up, {refused} not")
    return FAILED if refused else DONE


def _unknown(server: Client) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        query = {"state": "unknown", "limit": "500"} | ({"cursor": cursor} if cursor else {})
        page = server.get(f"/tasks?{urlencode(query)}")
        yield from page.page("tasks")
        cursor = page.value.get("next")
        if cursor is None:
            return
