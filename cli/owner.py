"""What `deadsure up` owns: a supervisor in a child process, and perhaps a PostgreSQL.

The supervisor is a process of its own so that it can be killed and started again, as systemd would do it, while
PostgreSQL and the listening socket stay. Both end with this process, also when it is killed: the kernel sends the
supervisor SIGKILL and PostgreSQL SIGINT (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from ..supervisor.kernel import signal_name
from ..supervisor.signals import Signals
from .embedded import EmbeddedError, EmbeddedPostgres
from .options import FAILED, say

#: A supervisor that was killed sooner than this after its start is not started again at once: seconds.
_TOO_SOON = 2.0
_PAUSE = 1.0


class Owner:
    """Keeps both running until told to stop. `ready` is asked again and again until it has said what to try next."""

    def __init__(
        self,
        listener: socket.socket,
        variables: Mapping[str, str],
        postgres: EmbeddedPostgres | None,
        ready: Callable[[], bool],
        keep_others: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._variables = variables
        self._postgres = postgres
        self._ready = ready
        self._keep_others = keep_others
        self._announced = False
        self._stopping = False
        self._signals = Signals()
        self._start()

    def run(self) -> int:
        """Until the supervisor exits by itself: its exit code, or 1 when it was killed while it was stopping."""
        try:
            while True:
                self._hear_signals()
                code = self._supervisor.poll()
                if code is not None and (code >= 0 or self._stopping):
                    return code if code >= 0 else FAILED
                if code is not None:
                    self._start_again(-code)
                self._keep_postgres()
                self._keep_others()
                self._announced = self._announced or self._ready()
                self._sleep()
        finally:
            self._end()

    def _start(self) -> None:
        command = [sys.executable, "-m", "deadsure", "serve"]
        options = ["--listener", str(self._listener.fileno()), "--owner", str(os.getpid())]
        self._supervisor = subprocess.Popen(
            [*command, *options],
            env=self._variables,
            pass_fds=[self._listener.fileno()],
            # Else a terminal's Ctrl-C would reach it beside our SIGTERM, and count as the second one.
            process_group=0,
        )
        self._exited = os.pidfd_open(self._supervisor.pid)
        self._started = time.monotonic()

    def _start_again(self, number: int) -> None:
        say(f"the supervisor (pid {self._supervisor.pid}) was killed by {signal_name(number)}; starting it again")
        os.close(self._exited)
        if time.monotonic() - self._started < _TOO_SOON:
            select.select([self._signals.fd], [], [], _PAUSE)
        self._start()

    def _hear_signals(self) -> None:
        for _ in self._signals.arrived():  # HUP too: it is what a terminal sends that is closed
            say("stopping at once" if self._stopping else "draining; Ctrl-C again stops at once")
            self._stopping = True
            self._supervisor.terminate()

    def _keep_postgres(self) -> None:
        if self._postgres is None or self._postgres.alive():
            return
        say("PostgreSQL has ended; starting it again")
        try:
            self._postgres.start()
        except EmbeddedError as error:
            say(str(error))

    def _sleep(self) -> None:
        select.select([self._signals.fd, self._exited], [], [], 1.0 if self._announced else 0.1)

    def _end(self) -> None:
        """Nothing of the supervisor is left; by now only an error of ours can find it alive."""
        if self._supervisor.poll() is None:
            self._supervisor.kill()
            self._supervisor.wait()
        os.close(self._exited)
        self._signals.close()
