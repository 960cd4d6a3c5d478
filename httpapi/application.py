"""The user's application in the api child: it is there only to check payloads before they are stored."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from ..runtime.blackbox import PoolMemory
from ..runtime.errors import AppNotLoaded
from ..runtime.events import emit
from ..runtime.handlers import App
from ..runtime.loading import load
from .problems import Problem
from .settings import ApiSettings

_NOT_YET = "no worker of this pool has come through its import yet (GET /workers and the log say why)"


class Application:
    """Nothing, until `load` has been called in the main thread; meanwhile, and if it fails, no submit is accepted."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._app: App | None = None
        self._loading = settings.app is not None
        self._missing: str | None = None if settings.app is None else _NOT_YET

    def load(self) -> None:
        """Import the application, which can take as long as its author likes. Never raises."""
        if self._settings.app is None:
            return
        try:
            self._app = load(self._settings.app, self._settings.app_dir)
        except AppNotLoaded as error:
            self._missing = str(error)
            emit("the application could not be loaded in the api process", error=str(error))
        else:
            self._missing = None
        self._loading = False

    @property
    def missing(self) -> str | None:
        """Why no task can be submitted here; None when it can."""
        return self._missing

    async def require(self, memory: PoolMemory, deadline: float) -> None:
        """Raises Problem (503) while payloads cannot be checked. Waits until `deadline` (time.monotonic) for an import
        that is about to end: a worker of this pool has come through it already.
        """
        while self._loading and memory.read_header().ever_ready and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self._missing is not None:
            raise Problem(503, "app-not-loaded", f"no task can be submitted here: {self._missing}; nothing was stored")

    def check(self, kind: str, payload: Any, where: str) -> None:
        """Raises Problem (422), which names the field, when the handler's annotation refuses this payload.

        A kind that this application does not have is somebody else's, and is not checked.
        """
        try:
            expected = self._app.handler(kind).payload_type if self._app is not None else None
        except KeyError:
            return
        if expected is None:
            return
        try:
            msgspec.convert(payload, expected)
        except msgspec.ValidationError as error:
            said = str(error)
            placed = said.replace("`$", f"`{where}") if "`$" in said else f"{said} - at `{where}`"
            raise Problem(422, "invalid-payload", placed) from None
