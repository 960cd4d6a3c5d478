"""What a database role may do in our schema, for people. Nothing is decided by it.

`deploy/postgres/roles.sql` grants the same; a test holds the two together, and each against the statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .. import sql
from ..db import Connection

_RIGHTS = sql.statement("rights")

Rights = Mapping[str, tuple[str, ...]]

#: What the statements of a pool need: those of its supervisor, its workers and its api children.
OF_A_POOL: Rights = {
    "migrations": ("select",),
    "kinds": ("select", "insert", "update"),
    "tasks": ("select", "insert", "update"),
    "ready": ("select", "insert", "update", "delete"),
    "scheduled": ("select", "insert", "update", "delete"),
    "unknowns": ("select", "insert", "update", "delete"),
    "incarnations": ("select", "insert", "update"),
    "slots": ("select", "insert", "update"),
    "events": ("select", "insert"),
    "decisions": ("select", "insert"),
    "asked()": ("execute",),
    "keeps_the_rules()": ("execute",),
}
#: What a pool has no use for, and what it would do to who did what and why.
TOO_MUCH: Rights = {
    "tasks": ("delete", "truncate"),
    "events": ("update", "delete", "truncate"),
    "decisions": ("update", "delete", "truncate"),
}


@dataclass(frozen=True, slots=True)
class Standing:
    """`missing`: what a pool needs and this role may not do. `beyond`: what it may do though no pool has to."""

    missing: tuple[str, ...]
    beyond: tuple[str, ...]


def standing(connection: Connection) -> Standing | None:
    """How the connected role stands to a pool's needs; None while there are no tables."""
    needed, beyond = _held(connection, OF_A_POOL), _held(connection, TOO_MUCH)
    if all(held is None for held in needed.values()):
        return None
    return Standing(
        tuple(f"{privilege} on {table}" for (table, privilege), held in needed.items() if not held),
        tuple(f"{privilege} on {table}" for (table, privilege), held in beyond.items() if held),
    )


def _held(connection: Connection, rights: Rights) -> dict[tuple[str, str], bool | None]:
    """Each of these, and whether the role has it; None for what is not there."""
    pairs = [(table, privilege) for table, privileges in rights.items() for privilege in privileges]
    tables, privileges = [table for table, _ in pairs], [privilege for _, privilege in pairs]
    rows = connection.run(_RIGHTS, tables=tables, privileges=privileges)
    return {pair: row[0] for pair, row in zip(pairs, rows, strict=True)}
