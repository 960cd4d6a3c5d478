"""Every error the product raises on purpose. Each says what was not done, what is known, and what to do."""

from __future__ import annotations

from collections.abc import Iterable


class DeadsureError(Exception):
    """The root of all errors that deadsure raises on purpose."""


class ConfigurationError(DeadsureError):
    """The configuration cannot be used; nothing was started."""


class AppNotLoaded(DeadsureError):
    """The application module could not be imported; no task was touched."""


class UnknownKind(DeadsureError):
    """No worker has registered this kind of task, so nothing was stored."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"no worker has registered the kind {kind!r}; nothing was stored")
        self.kind = kind


class NotStorable(DeadsureError):
    """A value cannot be stored in PostgreSQL (a lone surrogate, NaN, ...); nothing was sent."""


class SchemaMismatch(DeadsureError):
    """The database's schema is not the one this version works with; nothing was changed."""


class StoreError(DeadsureError):
    """A statement did not give its answer. The subclass says whether it can have happened."""


class DatabaseUnavailable(StoreError):
    """The database cannot be reached, or is not a primary. Surely not done."""


class Unreachable(DatabaseUnavailable):
    """None of the configured hosts is a primary that answers. The text tells each host's own reason, so it is for
    operators; `public` is for everybody.
    """

    public = "cannot reach the database; nothing was done"

    def __init__(self, reasons: Iterable[str]) -> None:
        super().__init__(f"{self.public}. {'; '.join(reasons)}")


class StatementRefused(StoreError):
    """PostgreSQL answered with an ERROR. Surely not done."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(f"{message} (SQLSTATE {sqlstate})")
        self.sqlstate = sqlstate


class InDoubt(StoreError):
    """The answer was lost: the statement may have been carried out, or may yet be."""


class NotReplicated(InDoubt):
    """It is committed on the primary alone: PostgreSQL was told not to wait for the synchronous standby any longer.

    Asking again proves nothing, since the primary shows it already.
    """
