"""`deadsure list`: tasks, the newest first."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from urllib.parse import urlencode

from ..runtime.states import State
from . import client, task_text
from .options import DONE, say

EXAMPLES = """\
  deadsure list
  deadsure list --state unknown
  deadsure list --kind text.analyze --limit 500 --json
"""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--state", metavar="S", choices=[str(state) for state in State], help=", ".join(State))
    parser.add_argument("--kind", metavar="K", help="only this kind")
    parser.add_argument("--queue", metavar="Q", help="only this queue")
    parser.add_argument("--limit", metavar="N", type=int, help="at most so many, up to 500; default 50")
    parser.add_argument("--cursor", metavar="C", help="go on where the list before this one ended")
    parser.add_argument("--json", action="store_true", help="as the API answers")
    client.add_options(parser)


def run(arguments: Namespace) -> int:
    """Raises Refused or ServerUnavailable."""
    asked = {name: getattr(arguments, name) for name in ("state", "kind", "queue", "limit", "cursor")}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    answer = client.client_of(arguments).get(f"/tasks?{query}" if query else "/tasks")
    if arguments.json:
        print(answer.text)
        return DONE
    print(task_text.table(answer.page("tasks")))
    if answer.value.get("next"):
        say(f"there are more: repeat with --cursor {task_text.word(answer.value['next'])}")
    return DONE
