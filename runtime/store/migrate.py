"""Changes of the schema: numbered, checked by their text, safe when several hosts run them at once."""

from __future__ import annotations

import hashlib

from .. import sql
from ..db import Connection
from ..errors import SchemaMismatch

#: Any constant that only deadsure uses: "deadsure" as ASCII.
LOCK_KEY = int.from_bytes(b"deadsure", "big") & (2**63 - 1)

_LOCK = sql.statement("lock_schema")
_EXISTS = sql.statement("schema_exists")
_CREATE_SCHEMA = sql.statement("create_schema")
_CREATE_TABLE = sql.statement("create_migrations")
_APPLIED = sql.statement("applied_migrations")
_NOTE = sql.statement("note_migration")


def migrate(connection: Connection) -> list[str]:
    """Apply what is missing, all of it in one transaction or nothing. Returns the names of what was applied.

    Raises SchemaMismatch when the database holds a newer schema, or an applied migration had another text.
    """
    with connection.transaction():
        connection.run(_LOCK, key=LOCK_KEY)
        if not _exists(connection):
            connection.run(_CREATE_SCHEMA)
            connection.run(_CREATE_TABLE)
        missing = pending(connection)
        for migration in missing:
            connection.script(migration.text)
            connection.run(_NOTE, number=migration.number, name=migration.name, checksum=_checksum(migration))
    return [migration.name for migration in missing]


def script() -> str:
    """What `migrate` does to an empty database, as text for psql: one transaction, noted as applied."""
    steps = [_with(_LOCK, key=str(LOCK_KEY)), _CREATE_SCHEMA.text, _CREATE_TABLE.text]
    for migration in sql.migrations():
        steps.append(f"-- {migration.name}\n{migration.text.strip().rstrip(';')}")
        note = {"name": f"'{migration.name}'", "checksum": f"'{_checksum(migration)}'"}
        steps.append(_with(_NOTE, number=str(migration.number), **note))
    return ";\n\n".join(["begin", *steps, "commit"]) + ";\n"


def check(connection: Connection) -> None:
    """Raises SchemaMismatch unless the schema is exactly this version's."""
    missing = pending(connection)
    if missing:
        names = ", ".join(migration.name for migration in missing)
        raise SchemaMismatch(f"the schema is older than this version (missing: {names}); run `deadsure migrate`")


def pending(connection: Connection) -> list[sql.Migration]:
    """The migrations that have not been applied. Raises SchemaMismatch as `migrate` does; changes nothing."""
    known = sql.migrations()
    if not _exists(connection):
        return known
    applied = {number: (name, checksum) for number, name, checksum in connection.run(_APPLIED)}
    newest = known[-1].number
    for number, (name, checksum) in applied.items():
        if number > newest:
            raise SchemaMismatch(f"the schema has migration {name}, which this version does not know; upgrade deadsure")
        expected = next((m for m in known if m.number == number), None)
        if expected is None or _checksum(expected) != checksum:
            raise SchemaMismatch(
                f"migration {name} was applied with another text, by another build of deadsure; nothing was changed."
                " Use the build that made this database, or an empty database"
            )
    return [migration for migration in known if migration.number not in applied]


def _exists(connection: Connection) -> bool:
    return bool(connection.run(_EXISTS)[0][0])


def _with(statement: sql.Statement, **literals: str) -> str:
    """The statement with literals in place of its parameters. All of them are ours."""
    text = statement.text
    for name, literal in literals.items():
        text = text.replace(f":{name}", literal)
    return text


def _checksum(migration: sql.Migration) -> str:
    return hashlib.sha256(migration.text.encode()).hexdigest()
