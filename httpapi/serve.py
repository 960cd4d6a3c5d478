"""The api child's whole life: Hypercorn, in this process, on a socket that was bound before the fork.

Hypercorn's own multi-worker mode is not used: a kill -9 of one of its workers ends the whole server. Each api child is
one server, supervised like every other child.

The loop runs in a thread of its own and the main thread stays free for the user's application, because some code
insists on being imported there, and because /livez must answer while an import takes its time. SIGTERM reaches the
loop through the wake-up descriptor, which Python writes also while the main thread is busy in an import.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from typing import Any

from hypercorn.asyncio import serve as run_hypercorn
from hypercorn.config import Config

from ..runtime.blackbox import PoolMemory
from . import front
from .app import build
from .application import Application
from .settings import ApiSettings

#: Seconds after the drain, and after the server's end, in which the process must be gone; else it is ended from within.
_AFTER_DRAIN = 2.0


def serve(sock: socket.socket, memory: PoolMemory, wake: int, settings: ApiSettings) -> int:
    """Serve on `sock` until SIGTERM or SIGINT, then drain for `settings.drain_timeout`. Returns the exit code.

    Call it in the main thread of a freshly forked process. It takes over the signals and the socket. If it cannot end
    in time, because the application's import hangs or a thread is stuck, it ends the process itself.
    """
    stop = _signals()
    application = Application(settings)
    ended: list[int] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(_serve(sock, memory, wake, settings, application, stop)))
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


async def _serve(
    sock: socket.socket,
    memory: PoolMemory,
    wake: int,
    settings: ApiSettings,
    application: Application,
    stop: socket.socket,
) -> int:
    here = front.make(settings, memory, application, wake)
    stopping = asyncio.Event()
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
    config = Config()
    config.bind = [f"fd://{sock.detach()}"]
    config.backlog = 1024
    config.accesslog = None
    config.errorlog = None
    config.loglevel = "WARNING"
    config.graceful_timeout = 0.8 * settings.drain_timeout
    config.include_server_header = False
    config.keep_alive_timeout = 10.0
    config.keep_alive_max_requests = 1_000_000
    return config
