"""deadsure: a task runtime on PostgreSQL for work whose outcome must not be guessed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runtime.client import submit, submit_many
    from .runtime.effects import (
        Ambiguous,
        Call,
        Contract,
        Intent,
        NotSent,
        Provider,
        Receipt,
        Rejected,
        Unavailable,
    )
    from .runtime.handlers import App, Backoff, Canceled, Context
    from .runtime.http_provider import HttpProvider
    from .runtime.model import JSON

__all__ = [
    "JSON",
    "Ambiguous",
    "App",
    "Backoff",
    "Call",
    "Canceled",
    "Context",
    "Contract",
    "HttpProvider",
    "Intent",
    "NotSent",
    "Provider",
    "Receipt",
    "Rejected",
    "Unavailable",
    "__version__",
    "submit",
    "submit_many",
]
__version__ = "0.1.0"

#: Where the rest of these names comes from; all others are in `effects`.
_ELSEWHERE = {
    "submit": "client",
    "submit_many": "client",
    "App": "handlers",
    "Backoff": "handlers",
    "Canceled": "handlers",
    "Context": "handlers",
    "HttpProvider": "http_provider",
    "JSON": "model",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used: `deadsure show` needs none of them, nor the driver behind them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f".runtime.{_ELSEWHERE.get(name, 'effects')}", __name__), name)
    globals()[name] = found
    return found
