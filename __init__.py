"""deadsure: a task runtime on PostgreSQL for work whose outcome must not be guessed."""

from .runtime.handlers import App, Canceled, Context
from .runtime.model import JSON

__all__ = ["JSON", "App", "Canceled", "Context", "__version__"]
__version__ = "0.1.0"
