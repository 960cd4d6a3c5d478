"""If-None-Match (RFC 9110, section 13.1.2) and `Prefer: wait` (RFC 7240), alone and together."""

from __future__ import annotations

import asyncio
import re
from uuid import UUID

from starlette.requests import Request

from ..runtime.states import TERMINAL, State
from .waiting import Waiters

#: Seconds; a longer wait is cut to this, as the answer's Preference-Applied says.
LONGEST_WAIT = 30

_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,9})\"?\s*(?:$|[,;])", re.IGNORECASE | re.ASCII)
_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def wait(request: Request) -> int | None:
    """For how many seconds the client would wait; None when it did not say so in a way that RFC 7240 knows."""
    found = _WAIT.search(",".join(request.headers.getlist("prefer")))
    return None if found is None else min(int(found[1]), LONGEST_WAIT)


def seen(request: Request, version: int) -> bool:
    """Whether the client has this version of the task already: 304."""
    values = ",".join(request.headers.getlist("if-none-match"))
    return values.strip() == "*" or str(version) in _TAG.findall(values)


def answers(request: Request, state: State, version: int) -> bool:
    """Whether the task as it stands is what the client waits for.

    With If-None-Match: any other version than the client's. Without it: the end, or `unknown`, which may last.
    """
    if "if-none-match" in request.headers:
        return not seen(request, version)
    return state in TERMINAL or state is State.UNKNOWN


async def until_changed(request: Request, id: UUID, seconds: float, waiters: Waiters) -> None:
    """Wait until the task `answers`, the time is over or the client has gone. Raises Problem (429)."""
    gone = asyncio.Event()
    watching = asyncio.create_task(_watch(request, gone))
    try:
        await waiters.wait(id, lambda state, version: answers(request, state, version), seconds, gone)
    finally:
        watching.cancel()


async def _watch(request: Request, gone: asyncio.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
