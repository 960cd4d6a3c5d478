"""A sandbox ledger as a child process: started, killed, started again on the same book and the same address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from . import book
from .book import History


class LedgerProcess:
    """One ledger, which dies with the process that started it. Use it as a context.

    The address is bound here, so that nobody has to wait for it: a request made before the ledger serves, or while it
    is being started again, waits in the socket's queue. Raises OSError when the port is taken; 0 takes a free one.
    """

    def __init__(
        self,
        file: Path,
        mode: str = "contract",
        *,
        port: int = 0,
        options: Mapping[str, str] = {},
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.file = file
        self._mode = mode
        self._options = options
        self._env = env
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LedgerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._listener.close()

    @property
    def pid(self) -> int | None:
        """Its process id, None when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def history(self) -> History:
        """What stands in its book now."""
        return book.read(self.file)

    def start(self, mode: str | None = None, options: Mapping[str, str] | None = None) -> LedgerProcess:
        """Run it, perhaps in another mode than before, or with other options."""
        self._mode = mode or self._mode
        self._options = self._options if options is None else options
        fd = self._listener.fileno()
        words = ["--book", str(self.file), "--mode", self._mode, "--listener", str(fd), "--owner", str(os.getpid())]
        more = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deadsure.drills.ledger", *words, *more],
            env=self._env,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C is for whoever owns it
        )
        return self

    def kill(self) -> None:
        """SIGKILL, and it is gone. Nothing that it answered is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
