"""deadsure: a task runtime on PostgreSQL for work whose outcome must not be guessed."""

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
