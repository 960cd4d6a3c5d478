"""Telling other hosts that something was committed, so that their idle workers look at once.

A hint, and priced like one. It is sent after the commit, by a thread and a session of its own: no request waits for it
and no connection of the pool is taken. What is committed within EVERY seconds is announced together, the last of it
too. While no other incarnation lives nothing is sent and no session is opened. What cannot be said is not said later
either: idle workers look by themselves every `poll_interval`.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from ..runtime import db
from ..runtime.blackbox import PoolMemory
from ..runtime.errors import StoreError
from ..runtime.store import pool
from ..runtime.store.sessions import Sessions

#: Seconds between two announcements of one process.
EVERY = 0.05
#: Seconds that one may take.
_PATIENCE = 1.0
#: A session that was idle may have ended, and only its use tells.
_ATTEMPTS = 2


class Announcer:
    """In the process that made it."""

    def __init__(self, settings: db.Settings, memory: PoolMemory) -> None:
        self._settings = settings
        self._memory = memory
        self._sessions = Sessions("deadsure api announcer")
        self._committed = threading.Event()
        threading.Thread(target=self._work, name="announcer", daemon=True).start()

    def committed(self) -> None:
        """Have it announced that something was committed. Returns at once; from any thread."""
        self._committed.set()

    def _work(self) -> None:
        while True:
            self._committed.wait()
            self._committed.clear()  # before it is sent: what is committed from now on is announced after this
            self._announce()
            time.sleep(EVERY)

    def _announce(self) -> None:
        sender = self._memory.read_header().announce_as
        if sender is None:
            return
        for _ in range(_ATTEMPTS):
            with suppress(StoreError):
                pool.announce(self._sessions.take(self._settings, lambda: _PATIENCE), sender)
                return
