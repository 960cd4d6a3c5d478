"""Children: how their end is learned, and that no signal ever reaches a process that is not ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from deadsure.supervisor.output import Output
from kit.pool import SOURCE

FORKING = "from deadsure.supervisor.child import fork\nfrom deadsure.supervisor import kernel, descendants\n"


def _run(script: str, prefix: list[str] | None = None) -> str:
    """Run a script in a process of its own: forking belongs in a single-threaded parent."""
    code = FORKING + "import os, select, signal, sys, time\n" + textwrap.dedent(script)
    done = subprocess.run(
        [*(prefix or []), sys.executable, "-c", code],
        env=dict(os.environ) | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("life", "end"),
    [("os._exit(7)", "exit code 7"), ("os.kill(os.getpid(), 9)", "SIGKILL"), ("os.abort()", "SIGABRT"),
     ("1/0", "exit code 1"), ("return 0", "exit code 0")],
)  # fmt: skip
def test_the_kernel_tells_how_a_child_ended_before_it_is_collected(life: str, end: str) -> None:
    said = _run(f"""
        def life():
            {life}
        child = fork(life, [])
        select.select([child.pidfd], [], [], 20)
        print(child.exit(), child.exit().cpu_seconds is not None, child.exit().max_rss_kib > 1000)
        os.kill(child.pid, 0)  # the zombie pins its pid
        child.reap()
        try:
            os.kill(child.pid, 0)
        except ProcessLookupError:
            print("collected")
    """)
    assert said.splitlines() == [f"{end} True True", "collected"]


def test_a_child_whose_status_somebody_else_took_is_dead_and_nothing_more_is_known() -> None:
    said = _run("""
        child = fork(lambda: 0, [])
        os.waitpid(child.pid, 0)
        exit = child.exit()
        print(exit, exit.signal, exit.code)
    """)
    assert said == "status unknown None None\n"


def test_without_a_descriptor_for_a_pidfd_a_child_is_still_watched_and_killed() -> None:
    said = _run("""
        import resource
        real = os.pidfd_open
        def none_left(pid):
            raise OSError(24, "Too many open files")
        os.pidfd_open = none_left
        child = fork(lambda: time.sleep(60) or 0, [])
        print(child.pidfd, child.exit())
        child.kill()
        while child.exit() is None:
            pass
        print(child.exit())
        child.reap()
    """)
    assert said == "None None\nSIGKILL\n"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a pid namespace needs root")
def test_a_signal_after_the_collection_never_reaches_the_next_process_with_that_pid() -> None:
    said = _run(
        """
        import subprocess
        child = fork(lambda: 0, [])
        select.select([child.pidfd], [], [], 20)
        child.kill()
        child.kill_group()
        child.reap()
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(child.pid - 1))
        sleep = subprocess.Popen(["sleep", "60"])
        print(sleep.pid == child.pid)
        child.kill()
        child.kill_group()
        try:
            sleep.wait(0.3)
        except subprocess.TimeoutExpired:
            print("alive")
        sleep.kill()
        sleep.wait()
        """,
        ["unshare", "--pid", "--fork", "--mount-proc"],
    )
    assert said == "True\nalive\n"


def test_a_child_keeps_no_descriptor_that_it_was_not_given() -> None:
    said = _run("""
        secret, given = os.open("/etc/passwd", os.O_RDONLY), os.open("/etc/hostname", os.O_RDONLY)
        def life():
            names = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 2
                     and os.path.exists(f"/proc/self/fd/{n}")}
            print(sorted(names - {f"/proc/{os.getpid()}/fd"}), flush=True)
            return 0
        child = fork(life, [given])
        select.select([child.pidfd], [], [], 20)
        print(os.read(child.output, 1000).decode(), end="")
    """)
    assert said == "['/etc/hostname']\n"


def test_a_child_dies_with_its_parent() -> None:
    said = _run("""
        middle = os.fork()
        if middle == 0:
            child = fork(lambda: time.sleep(60) or 0, [])
            os.write(1, str(child.pid).encode() + b"\\n")
            time.sleep(60)
        os.set_blocking(1, True)
        time.sleep(0)
        deadline = time.monotonic() + 20
        while not os.path.exists(f"/proc/{middle}/task/{middle}/children") or not open(
            f"/proc/{middle}/task/{middle}/children").read().split():
            assert time.monotonic() < deadline
        (child,) = open(f"/proc/{middle}/task/{middle}/children").read().split()
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        while os.path.exists(f"/proc/{child}") and open(f"/proc/{child}/stat").read().split()[2] not in "ZX":
            assert time.monotonic() < deadline
        print("gone")
    """)
    assert said.endswith("gone\n")


def test_output_that_nobody_reads_is_dropped_counted_and_told() -> None:
    read, write = os.pipe()
    output = Output(write)
    for number in range(1000):
        output.write(f"{number} " + "x" * 500)
    assert output.dropped > 500
    before = _available(read)
    output.write("after")
    assert f"({output.dropped} lines were dropped here" in _available(read).decode()
    assert before.startswith(b"0 xxx")
    os.close(read)
    output.write("nobody at all")
    os.close(write)


def _available(fd: int) -> bytes:
    os.set_blocking(fd, False)
    found = b""
    try:
        while piece := os.read(fd, 65536):
            found += piece
    except BlockingIOError:
        pass
    return found



