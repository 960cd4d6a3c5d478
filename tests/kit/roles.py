"""deploy/postgres/roles.sql on a test's database, and logins that have its roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pg8000.native
from deadsure.runtime import db

from .pool import ROOT

ROLES = ("deadsure_owner", "deadsure_runtime", "deadsure_submitter", "deadsure_reader", "deadsure_pruner")


def apply(session: pg8000.native.Connection, prefix: str = "deadsure_") -> None:
    """Run the file as psql would; a failed one leaves nothing open. Roles belong to the whole server: a test that is
    about their making has names of its own.
    """
    text = (ROOT / "deploy" / "postgres" / "roles.sql").read_text()
    try:
        session.run(text.replace("deadsure_", prefix))
    except pg8000.exceptions.DatabaseError:
        session.run("rollback")
        raise


@contextmanager
def login(admin: pg8000.native.Connection, *roles: str) -> Iterator[str]:
    """The name of a new login that has these roles, and nothing else."""
    name = f"login_{uuid4().hex[:12]}"
    admin.run(f"create role {name} login" + (f" in role {', '.join(roles)}" if roles else ""))
    try:
        yield name
    finally:
        admin.run(f"drop role {name}")


def as_user(database: db.Settings, user: str) -> db.Settings:
    """The same database, as somebody else."""
    return replace(database, dsn=replace(database.dsn, user=user))
