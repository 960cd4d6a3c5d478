"""Every SQL statement of the product, by name.

A statement stands in a `.sql` file of this folder under a line `-- name: NAME`, with a comment that says what it may
change and what "no row" means. Python only names it, and a misspelt name fails when the module that uses it is
imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement. `text` is what the driver prepares."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered change of the schema, `NNNN_name.sql`."""

    number: int
    name: str
    text: str


def statement(name: str) -> Statement:
    """The statement of that name. Raises KeyError when no file holds it."""
    return _STATEMENTS[name]


def migrations() -> list[Migration]:
    """All migrations, in the order in which they are applied."""
    folder = files(__name__).joinpath("migrations")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [Migration(int(f.name[:4]), f.name.removesuffix(".sql"), f.read_text("utf-8")) for f in found]


def _load() -> dict[str, Statement]:
    found: dict[str, Statement] = {}
    for file in files(__name__).iterdir():
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text("utf-8"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"two statements are named {name}")
            found[name] = Statement(name, body.strip().rstrip(";"))
    return found


_STATEMENTS = _load()
