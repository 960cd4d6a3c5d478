"""The few calls to Linux that Python does not offer: prctl, and waitid with resource usage."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WAITID = {"x86_64": 247, "aarch64": 95}.get(platform.machine())


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as the kernel says. `signal` is a name, else `code` is set; both None: status lost."""

    signal: str | None = None
    code: int | None = None
    core_dumped: bool = False
    cpu_seconds: float | None = None
    max_rss_kib: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return self.signal
        return "status unknown" if self.code is None else f"exit code {self.code}"

    @property
    def cause(self) -> str:
        """The signal's name, `ok`, `error`, or `other` when the status was lost."""
        if self.signal is not None:
            return self.signal
        return "other" if self.code is None else "error" if self.code else "ok"


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends. Exits at once if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every orphan among this process's descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def peek_exit(pid: int, pidfd: int | None) -> Exit | None:
    """How the child ended, leaving the zombie, which pins its pid. None: it is alive."""
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    kind, who = (os.P_PID, pid) if pidfd is None else (os.P_PIDFD, pidfd)
    try:
        found = os.waitid(kind, who, flags)
    except ChildProcessError:
        # Somebody else reaped it, or SIGCHLD is ignored: dead, and nobody can say how.
        return Exit()
    if found is None:
        return None
    cpu, rss = _usage(pid)
    if found.si_code == os.CLD_EXITED:
        return Exit(code=found.si_status, cpu_seconds=cpu, max_rss_kib=rss)
    core = found.si_code == os.CLD_DUMPED
    return Exit(signal_name(found.si_status), core_dumped=core, cpu_seconds=cpu, max_rss_kib=rss)


def reap(pid: int) -> None:
    """Collect the zombie; its pid may be handed out again afterwards."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Rusage(ctypes.Structure):
    _fields_ = (
        ("utime", ctypes.c_long * 2),
        ("stime", ctypes.c_long * 2),
        ("maxrss", ctypes.c_long),
        ("rest", ctypes.c_long * 13),
    )


def _usage(pid: int) -> tuple[float | None, int | None]:
    """CPU seconds and peak memory (KiB) of a zombie. Only the raw system call tells them without reaping."""
    if _WAITID is None:
        return None, None
    usage = _Rusage()
    info = ctypes.create_string_buffer(128)
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    if _libc.syscall(_WAITID, os.P_PID, pid, info, flags, ctypes.byref(usage)) != 0:
        return None, None
    seconds = usage.utime[0] + usage.stime[0] + (usage.utime[1] + usage.stime[1]) / 1e6
    return round(seconds, 6), int(usage.maxrss)


def file_system(fd: int) -> int:
    """The magic number of the file system that an open file lies on (statfs(2), f_type)."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(fd, buffer) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
