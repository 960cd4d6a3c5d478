"""The command `deadsure`: which commands there are, and what an error becomes for the shell.

Exit codes: 0 done, 1 refused or failed, 2 usage, 69 database or server unavailable, 78 bad configuration.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module

from .. import __version__
from ..runtime.errors import ConfigurationError, DatabaseUnavailable, DeadsureError, InDoubt
from . import streams
from .client import ServerUnavailable
from .layers import OptionError
from .options import BAD_CONFIGURATION, FAILED, UNAVAILABLE, USAGE, say

#: Each command is the file of its name, with `EXAMPLES`, `add_options(parser)` and `run(arguments) -> exit code`.
COMMANDS = {
    "up": "everything on this machine: PostgreSQL, schema, supervisor, workers, API",
    "serve": "production: a pool of workers and the API on the configured PostgreSQL",
    "migrate": "bring the database's schema to this version",
    "submit": "submit a task",
    "show": "show a task",
    "list": "list tasks, the newest first",
    "cancel": "cancel a task, or ask a running one to stop",
    "reconcile": "have an unknown task looked up at its provider now",
    "resolve": "decide about an unknown task, with evidence",
    "prune": "remove tasks that finished long ago, with all their parts",
    "drill": "kill for real, and read afterwards whether every promise was kept",
    "bench": "measure throughput and latency, each beside its floor",
    "doctor": "check configuration, database and runtime directory, and say what to do",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; an error is one line on stderr, never a traceback."""
    streams.make_valid()
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser(words).parse_args(words)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except OptionError as error:
        return _failed(error, USAGE)
    except ConfigurationError as error:
        return _failed(error, BAD_CONFIGURATION)
    except (DatabaseUnavailable, InDoubt, ServerUnavailable) as error:
        return _failed(error, UNAVAILABLE)
    except DeadsureError as error:
        return _failed(error, FAILED)
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except BrokenPipeError:
        streams.nobody_reads()
        return FAILED
    except OSError as error:
        streams.nobody_reads()
        return _failed(error, FAILED)


def _parser(words: Sequence[str]) -> ArgumentParser:
    """The parser. Only the command that is called is imported, so that `deadsure show` need not load a server."""
    parser = ArgumentParser(
        prog="deadsure",
        description="A task runtime on PostgreSQL for work whose outcome must not be guessed.",
        epilog="examples:\n  deadsure up\n  deadsure COMMAND --help",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"deadsure {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    called = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == called:
            _complete(command, name)
    return parser


def _complete(parser: ArgumentParser, name: str) -> None:
    module = import_module(f".{name}", __package__)
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.allow_abbrev = False
    parser.epilog = f"examples:\n{module.EXAMPLES.rstrip()}"
    parser.add_argument("--config", metavar="FILE", help="the configuration, TOML; else DEADSURE_CONFIG, else none")
    module.add_options(parser)
    parser.set_defaults(run=module.run)


def _failed(error: object, code: int) -> int:
    say(str(error))
    return code
