"""The one classifier: what an exception of the driver says about the statement it came from.

A statement that never arrived and one whose answer was lost raise the same exception, so the class alone says nothing.
Done, surely not done, in doubt: whoever wants to know asks here.
"""

from __future__ import annotations

from pg8000 import exceptions as pg

from .errors import DatabaseUnavailable, InDoubt, StatementRefused, StoreError


def answered_with_error(error: BaseException) -> bool:
    """Whether the server answered ERROR and is ready for the next statement: the one case that is safe to go on."""
    return isinstance(error, pg.DatabaseError) and field(error, "V") == "ERROR"


def verdict(what: str, error: Exception, in_transaction: bool) -> StoreError:
    """What this exception says about the statement `what`.

    Inside a transaction nothing is done before the COMMIT, so a lost answer there is surely not done.
    """
    if answered_with_error(error):
        return StatementRefused(f"{what}: {field(error, 'M')}", field(error, "C"))
    if isinstance(error, pg.InterfaceError) and "in failed transaction block" in str(error):
        return StatementRefused(f"{what}: the transaction had failed and was rolled back", "25P02")
    if not_committing(what, in_transaction):
        said = f"the connection was lost inside a transaction ({what}: {text(error)}); it is not done"
        return DatabaseUnavailable(said)
    return InDoubt(f"the answer to {what} was lost ({text(error)}); it may have been carried out")


def not_committing(what: str, in_transaction: bool) -> bool:
    """Whether a lost answer to it means that it is not done: nothing is before the COMMIT."""
    return in_transaction or what in ("begin", "rollback")


def field(error: BaseException, name: str) -> str:
    """One field of the server's ErrorResponse, such as C for the SQLSTATE; empty when it is not one."""
    detail = error.args[0] if error.args else None
    return str(detail.get(name, "")) if isinstance(detail, dict) else ""


def text(error: BaseException) -> str:
    """What it says, for people."""
    return field(error, "M") or str(error) or type(error).__name__
