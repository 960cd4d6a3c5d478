"""Standard input, output and error, made fit for what comes."""

from __future__ import annotations

import io
import os
import sys


def make_valid() -> None:
    """Open what of the descriptors 0, 1 and 2 is closed on /dev/null, before anything else is opened.

    Else the first socket would become one of them: whatever is printed would go to a client or to the database. And
    let no character stop a line: what the terminal's encoding lacks is escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def nobody_reads() -> None:
    """Whoever read our output has gone: let Python's last flush go nowhere, without a complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
