"""The api child's whole life: Hypercorn, in this process, on a socket that was bound before the fork.

Hypercorn's own multi-worker mode is not used: a kill -9 of one of its workers ends the whole server. Each api child is
one server, supervised like every other child.

The loop runs in a thread of its own and the main thread stays free for the user's application, because some code
insists on being imported there, and because /livez must answer while an import takes its time. SIGTERM reaches the
loop through the wake-up descriptor, which Python writes also while the main thread is busy in an import.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from hypercorn.asyncio import serve as run_hypercorn
from hypercorn.config import Config

from ..metrics.memory import MetricsMemory
from ..runtime.blackbox import PoolMemory
from . import connection, front, listener
from .app import build
from .application import Application
from .front import Front
from .settings import ApiSettings

#: Seconds after the drain, and after the server's end, in which the process must be gone; else it is ended from within.
_AFTER_DRAIN = 2.0
#: mallopt(3): allocations of so many bytes and more get a mapping of their own.
_M_MMAP_THRESHOLD, _LARGE = -3, 128 * 1024


def serve(
    sock: socket.socket,
    memory: PoolMemory,
    wake: int,
    settings: ApiSettings,
    metrics: MetricsMemory | None = None,
    number: int = 0,
) -> int:
    """Serve on `sock` until SIGTERM or SIGINT, then drain for `settings.drain_timeout`. Returns the exit code.

    It counts in the page of this number (from 0) of the pool's metrics; without any it has its own.

    Call it in the main thread of a freshly forked process. It takes over the signals and the socket. If it cannot end
    in time, because the application's import hangs or a thread is stuck, it ends the process itself.
    """
    _give_back_large_memory()
    stop = _signals()
    application = Application(settings)
    ended: list[int] = []
    shared = metrics or MetricsMemory(len(memory.seats), 1)

    def run() -> None:
        try:
            here = partial(front.make, settings, memory, application, wake, shared, number)
            ended.append(asyncio.run(_serve(sock, here, stop)))
        finally:
            _end_for_sure(_AFTER_DRAIN)

    server = threading.Thread(target=run, name="http")
    server.start()
    # What brings a worker down when it is imported would bring this process down as well, and with it reads, cancels
    # and probes. So it is imported here only once a worker of this pool has come through it.
    while server.is_alive() and not memory.read_header().ever_ready:
        server.join(0.05)
    if server.is_alive():
        application.load()
    server.join()
    return ended[0] if ended else 1


def _give_back_large_memory() -> None:
    """Let large bodies go back to the kernel when they are done with.

    glibc begins like this, but raises its bound with the first of them; from then on each thread keeps its peak.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries have none
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _signals() -> socket.socket:
    """A socket that becomes readable at SIGTERM or SIGINT."""
    told, tell = socket.socketpair()
    told.setblocking(False)
    tell.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _only_wake_up)
    signal.set_wakeup_fd(tell.detach(), warn_on_full_buffer=False)
    return told


def _only_wake_up(_: int, __: object) -> None:
    """With a Python handler in place the C handler writes to the wake-up descriptor; that is all we need."""


async def _serve(sock: socket.socket, make: Callable[[], Front], stop: socket.socket) -> int:
    connection.install()
    here = make()
    settings = here.settings
    stopping = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(listener.tell)
    asyncio.get_running_loop().add_reader(stop, stopping.set)
    app: Any = build(here)  # Hypercorn's type of an ASGI application is narrower than Starlette's
    server = asyncio.ensure_future(run_hypercorn(app, _config(sock, settings), shutdown_trigger=stopping.wait))
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({server, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if server.done():
        server.result()  # it ended without being told to: say why
        return 1
    # Hypercorn's own graceful timeout is not kept on every Python, so ours stands around it, and one around that.
    _end_for_sure(settings.drain_timeout + _AFTER_DRAIN)
    # Connections that are cut now die in the middle of something; that is no news.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    here.waiters.stop()
    done, _ = await asyncio.wait({server}, timeout=settings.drain_timeout)
    here.pool.close()
    return 0 if done else 1


def _end_for_sure(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _config(sock: socket.socket, settings: ApiSettings) -> Config:
    config = listener.OneSocket(sock)
    config.backlog = 1024
    config.accesslog = None
    config.errorlog = None
    config.loglevel = "WARNING"
    config.graceful_timeout = 0.8 * settings.drain_timeout
    config.include_server_header = False
    config.keep_alive_timeout = 10.0
    config.keep_alive_max_requests = 1_000_000
    return config
