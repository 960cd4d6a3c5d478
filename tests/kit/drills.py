"""A drill, as one finds it from outside: its name, and its processes."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from .pool import alive


def name_of(said: str) -> str:
    """The drill's name, from what it said."""
    found = re.search(r"drill-[0-9a-f]{12}", said)
    assert found is not None, said
    return found[0]


def processes(name: str) -> list[int]:
    """Whoever of this drill's pools is alive: it has the name in its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if name.encode() in (folder / "environ").read_bytes() and alive(int(folder.name)):
                found.append(int(folder.name))
    return found
