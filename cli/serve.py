"""`deadsure serve`: a supervisor on the configured PostgreSQL, until it is told to stop."""

from __future__ import annotations

import socket
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from ..httpapi.settings import ApiSettings
from ..metrics.memory import MetricsMemory
from ..runtime import events
from ..runtime.blackbox import PoolMemory
from ..runtime.errors import DeadsureError
from ..supervisor import kernel
from ..supervisor.loop import Supervisor
from ..supervisor.output import Output
from ..supervisor.settings import ApiMain
from ..supervisor.told import tell
from . import log
from .address import Address, listen
from .options import add_pool, load_config, speak_through, warn_of_variables
from .wiring import api_settings, pool_settings

EXAMPLES = """\
  deadsure serve --config /etc/deadsure.toml
  DEADSURE_DATABASE_DSN=postgresql://app@db/app deadsure serve --app shop.tasks:app

signals: TERM or INT drains (stop claiming, finish what runs); a second one stops at once. HUP replaces the workers one
by one by such that have imported the application anew.
"""


class NotListening(DeadsureError):
    """The API's address cannot be used; nothing was started."""


def add_options(parser: ArgumentParser) -> None:
    add_pool(parser)
    # For `deadsure up`, which listens itself and must not be outlived.
    parser.add_argument("--listener", type=int, metavar="FD", help=SUPPRESS)
    parser.add_argument("--owner", type=int, metavar="PID", help=SUPPRESS)
    # For `deadsure drill`: the point at which the first worker to reach it waits to be killed, and where it says so.
    parser.add_argument("--drill", nargs=2, metavar=("POINT", "REPORT"), help=SUPPRESS)


def run(arguments: Namespace) -> int:
    """Supervise until told to stop. Raises ConfigurationError, NotListening or SchemaMismatch."""
    if arguments.owner is not None:
        kernel.die_with_parent(arguments.owner)
    config = load_config(arguments, warn=False)
    output = Output(notice=log.dropped(config.log.format))
    told = log.subscribe(output.write, config.log.level, config.log.format)
    if config.log.format == "json":
        speak_through(told.complain)
        sys.excepthook = told.crash
    if arguments.owner is None:
        warn_of_variables()
    api, settings = api_settings(config), pool_settings(config)
    if arguments.drill is not None:
        settings = replace(settings, drill=(arguments.drill[0], Path(arguments.drill[1])))
    listener = socket.socket(fileno=arguments.listener) if arguments.listener else open_listener(config.http.address)
    return Supervisor(settings, listener, _api_main(api), output, told.say).run()


def open_listener(address: Address) -> socket.socket:
    """The API's socket, before anything else is started. Raises NotListening."""
    try:
        return listen(address)
    except OSError as error:
        raise NotListening(
            f"cannot listen on {address}: {error.strerror}; nothing was started. Stop what listens there, "
            "or choose another address with --bind"
        ) from None


def _api_main(settings: ApiSettings) -> ApiMain:
    """An api child's life. The server is imported there only: the supervisor stays small, and so do the workers."""

    def main(listener: socket.socket, memory: PoolMemory, wake: int, metrics: MetricsMemory, number: int) -> int:
        from ..httpapi import serve

        events.subscribe(tell)
        code: int = serve.serve(listener, memory, wake, settings, metrics, number)
        return code

    return main
