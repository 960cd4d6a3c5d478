"""Importing the user's application: `module:attribute`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from .errors import AppNotLoaded
from .executor import reason_of
from .handlers import App


def load(name: str, folder: Path) -> App:
    """Import `module:attribute` with `folder` first on sys.path. Raises AppNotLoaded, which says why."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise AppNotLoaded(f"the application must be given as MODULE:ATTRIBUTE, not {name!r}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        app = getattr(importlib.import_module(module_name), attribute)
    except BaseException as error:  # importing runs the user's code, which may raise anything
        raise AppNotLoaded(f"cannot import the application {name!r}: {reason_of(error)}") from error
    if not isinstance(app, App):
        raise AppNotLoaded(f"{name!r} is a {type(app).__name__}, not a deadsure App")
    return app
