"""What wakes idle workers: promotions and recoveries of this host, and what other hosts announce by NOTIFY.

A NOTIFY says that there may be work, never which. Everything is committed before, and idle workers look by themselves
every `poll_interval`, so one that is lost costs time and nothing else: nothing here is repeated or waited for.

The driver keeps a notification that comes in while it reads an answer, and the link passes it on with each answer. When
the socket becomes readable while nothing was asked, a statement that asks for nothing makes the driver read it. What
came right behind an answer is already read and wakes nobody; it is passed on with the next answer, half a second later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..runtime.errors import StoreError
from ..runtime.store import pool
from .incarnation import Incarnation
from .link import Link

#: Seconds between two looks at the socket, however much is announced.
PAUSE = 0.05


class Hearing:
    """`wake` is the eventfd on which idle workers wait."""

    def __init__(self, link: Link, wake: int, incarnation: Callable[[], Incarnation]) -> None:
        self._link = link
        self._wake = wake
        self._incarnation = incarnation
        self._not_before = 0.0
        link.heard = self._heard

    def announce(self) -> None:
        """Something of ours can be claimed now: wake a worker, and tell other hosts if there are any."""
        os.eventfd_write(self._wake, 1)
        sender = self._incarnation().announce_as
        if sender is not None:
            with suppress(StoreError):
                self._link.call(lambda connection: pool.announce(connection, sender))

    def listen(self) -> None:
        """The descriptor is readable: read what was announced."""
        self._not_before = time.monotonic() + PAUSE
        with suppress(StoreError):
            self._link.call(pool.hear)

    @property
    def descriptor(self) -> int | None:
        """What becomes readable when something is announced; None while there is no session, or no need to look."""
        return self._link.fileno if time.monotonic() >= self._not_before else None

    @property
    def due(self) -> float:
        """When (time.monotonic) to look again."""
        return self._not_before

    def _heard(self, senders: Sequence[str]) -> None:
        mine = str(self._incarnation().id)
        if any(sender != mine for sender in senders):
            os.eventfd_write(self._wake, 1)
