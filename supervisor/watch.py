"""Sleeping until something happens: a child ends, prints or reports, a signal arrives, or a time has come."""

from __future__ import annotations

import os
import selectors
import time

from .child import Child
from .output import Relay


class Watch:
    """What wakes the supervisor. `report` is an eventfd that children write to."""

    def __init__(self, signals: int, report: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals, selectors.EVENT_READ)
        self._selector.register(report, selectors.EVENT_READ)
        self._report = report

    def add(self, child: Child, relay: Relay) -> None:
        """Wake when this child ends or prints."""
        if child.pidfd is not None:
            self._selector.register(child.pidfd, selectors.EVENT_READ)
        self._selector.register(child.output, selectors.EVENT_READ, relay)

    def forget(self, child: Child) -> None:
        """It has ended; its pipe may have ended before."""
        if child.pidfd is not None:
            self._selector.unregister(child.pidfd)
        if child.output in self._selector.get_map():
            self._selector.unregister(child.output)

    def sleep_until(self, due: float, guest: int | None = None) -> bool:
        """Wait until `due` (time.monotonic) at the latest, and pass on what the children print. `guest` is a descriptor
        that wakes only this time; True when it is readable.
        """
        readable = False
        for key in self._woken(max(0.0, due - time.monotonic()), guest):
            if key.fd == guest:
                readable = True
            elif key.fd == self._report:
                os.eventfd_read(self._report)
            elif isinstance(key.data, Relay) and not key.data.drain():
                self._selector.unregister(key.fileobj)
        return readable

    def _woken(self, seconds: float, guest: int | None) -> list[selectors.SelectorKey]:
        # It does not stay: a session that is lost is closed, and its number is soon that of another descriptor.
        if guest is not None:
            self._selector.register(guest, selectors.EVENT_READ)
        try:
            return [key for key, _ in self._selector.select(seconds)]
        finally:
            if guest is not None:
                self._selector.unregister(guest)
