"""As whom PostgreSQL runs, and how it is started so that it never outlives its owner.

PostgreSQL refuses to run as root. Started by root it runs, in this order, as the owner of an existing cluster, as
`postgres` where that account exists, or as `nobody`. Started by anybody else it runs as that user.

The kernel sends SIGINT (PostgreSQL: fast shutdown) to a child whose parent died, also of SIGKILL, when the child asked
for it with PR_SET_PDEATHSIG. Ways to ask, weighed: `preexec_fn` runs Python between fork and exec, which can deadlock
when other threads exist; `setpriv --pdeathsig` is not on every machine; so a small Python program takes the child's
place first, and then becomes PostgreSQL. Its order matters: setuid clears the request, so it comes before; the parent
may die before the request is made, so it is looked at after.
"""

import os
import pwd
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, run

from .embedded_binaries import EmbeddedError

# Nothing of the owner's environment reaches PostgreSQL: no PG* variables, and messages in the C locale.
ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/local/bin:/usr/bin:/bin"}

_DROP = """
import ctypes, os, signal, sys
owner, uid, gid = map(int, sys.argv[1:4])
if uid != os.geteuid():
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
"""

_BECOME = f"""{_DROP}
PR_SET_PDEATHSIG, zero = 1, ctypes.c_ulong(0)
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT), zero, zero, zero) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed")
if os.getppid() != owner:
    sys.exit("the owner died during the start")
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.umask(0o077)
os.chdir("/")
os.execve(sys.argv[4], sys.argv[4:], {ENVIRONMENT!r})
"""

_PROBE = f"""{_DROP}
for number, path in enumerate(sys.argv[4:]):
    if not os.access(path, os.X_OK if os.path.isdir(path) else os.R_OK):
        print(number)
"""


class Ended(Exception):
    """A program of PostgreSQL ended when it should not have; why is in the log."""

    def __init__(self, program: str | Path, status: int) -> None:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
        super().__init__(f"{Path(program).name} {how}")


@dataclass(frozen=True, slots=True)
class Account:
    """The user and group that own the cluster and run the server."""

    name: str
    uid: int
    gid: int

    def own(self, folder: Path) -> None:
        """Give this account a folder that nobody else may enter."""
        folder.chmod(0o700)
        os.chown(folder, self.uid, self.gid)


def account_for(cluster: Path) -> Account:
    """As whom a server on `cluster` runs; the module's text has the rule. EmbeddedError when root finds nobody."""
    if os.geteuid() != 0:
        return Account("the current user", os.geteuid(), os.getegid())
    with suppress(FileNotFoundError):
        if (found := cluster.stat()).st_uid != 0:
            return Account(_name_of(found.st_uid), found.st_uid, found.st_gid)
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody to run it as. "
        "Run deadsure as an ordinary user, or add one of the two."
    )


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts programs as `account`. `log` takes what they say; `lock` stays open in them and in their children."""

    account: Account
    log: int
    lock: int

    def launch(self, command: Sequence[str | Path], stdin: int = DEVNULL) -> Popen[bytes]:
        """A child of ours that gets SIGINT when we die, in a session of its own.

        A session of its own, so that a terminal's Ctrl-C reaches the owner only. Main thread only, because the kernel
        takes the end of the starting thread for our death.
        """
        if threading.current_thread() is not threading.main_thread():
            raise EmbeddedError("start the embedded PostgreSQL from the main thread: it would end with any other")
        return Popen(
            [*_as_account(self.account, _BECOME), *map(str, command)],
            stdin=stdin,
            stdout=self.log,
            stderr=self.log,
            pass_fds=(self.lock,),
            start_new_session=True,
        )

    def run(self, command: Sequence[str | Path], until: float, *, say: bytes = b"") -> None:
        """Run to the end, with `say` as input. Raises Ended when it fails, TimeoutExpired when it had to be killed."""
        process = self.launch(command, PIPE)
        try:
            process.communicate(say, timeout=max(0.0, until - time.monotonic()))
        finally:
            process.kill()  # nothing happens when it has ended
            process.wait()
        if process.returncode != 0:
            raise Ended(command[0], process.returncode)


def check_passage(account: Account, folder: Path) -> None:
    """EmbeddedError naming the first folder on the way to `folder` that `account` cannot pass through."""
    for shut in unreachable(account, [*reversed(folder.parents), folder]):
        raise EmbeddedError(
            f"PostgreSQL runs as {account.name} (root is refused), who cannot enter {shut} on the way to {folder}: "
            f"name a folder elsewhere, for example below /var/lib, or open that one with chmod o+x {shut}"
        )


def unreachable(account: Account, paths: Sequence[Path]) -> list[Path]:
    """Those of `paths` that `account` cannot enter (folders) or read (files). The kernel is asked, not the mode bits.

    Only root becomes somebody else, so for anybody else this is empty.
    """
    if account.uid == os.geteuid():
        return []
    command = [*_as_account(account, _PROBE), *map(str, paths)]
    answer = run(command, stdin=DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        last = answer.stderr.strip().splitlines()[-1:]
        raise EmbeddedError(f"cannot become {account.name} (uid {account.uid}) to run PostgreSQL: {' '.join(last)}")
    return [paths[int(number)] for number in answer.stdout.split()]


def _as_account(account: Account, program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, str(os.getpid()), str(account.uid), str(account.gid)]


def _name_of(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"
