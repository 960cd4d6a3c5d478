"""What several commands have in common: their options, their exit codes, and how they speak."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from . import config
from .config import Config

DONE = 0
FAILED = 1
USAGE = 2
UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
BAD_CONFIGURATION = 78  # EX_CONFIG


def add_app(parser: ArgumentParser) -> None:
    parser.add_argument("--app", metavar="M:A", help="the application, MODULE:ATTRIBUTE")
    parser.add_argument("--app-dir", metavar="DIR", help="comes first on sys.path; default: the working directory")


def add_pool(parser: ArgumentParser) -> None:
    add_app(parser)
    parser.add_argument("--workers", metavar="N", help="how many worker processes, 1 to 512; default 4")
    parser.add_argument("--bind", metavar="H:P", help="where the API listens; default 127.0.0.1:8470")


def add_data(parser: ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", type=Path, help="where the embedded PostgreSQL keeps its data")


def load_config(arguments: Namespace, *, warn: bool = True) -> Config:
    """The configuration with this command's options on top; `warn` of variables that mean nothing.

    Raises ConfigurationError or OptionError.
    """
    found = config.load(arguments.config, options_of(arguments))
    if warn:
        warn_of_variables()
    return found


def warn_of_variables() -> None:
    """One line for each variable with our prefix that means nothing."""
    for warning in config.unknown_variables():
        say(f"warning: {warning}")


def options_of(arguments: Namespace) -> dict[str, str | None]:
    """The options that are keys of the configuration, by key."""
    keys = {"app": "app", "app_dir": "app_dir", "workers": "pool.workers", "bind": "http.bind"}
    return {key: getattr(arguments, name, None) for name, key in keys.items()}


def hear_interrupts() -> None:
    """Let Ctrl-C and SIGTERM end this command by KeyboardInterrupt, so that what it has started is ended with it.

    A shell has SIGINT ignored for what a script puts in the background, and every child would inherit that.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def say(text: str) -> None:
    """One line for people, on stderr."""
    _speak(text)


def speak_through(write: Callable[[str], None]) -> None:
    """Let everything that `say` says go through the log instead."""
    global _speak
    _speak = write


def _print(text: str) -> None:
    print(f"deadsure: {text}", file=sys.stderr, flush=True)


_speak: Callable[[str], None] = _print
