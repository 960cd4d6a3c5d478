"""A real systemd as PID 1 of namespaces of its own, with deadsure's unit in it. Root, cgroup version 2, systemd >= 252.

The system is booted once and shared; each unit in it is a pool of its own, named by its instance. Its network is this
machine's, so that a test asks the API as it asks any other. It ends with the context `booted`, or with pytest: the
first process of the namespaces dies with the process that made them, which dies with ours.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .pool import ROOT, alive
from .postgres import remove_leftovers, scratch_folder
from .wait import wait_until

UNIT = ROOT / "deploy" / "systemd" / "deadsure@.service"
_BOOT = Path(__file__).with_suffix(".sh")
_PROGRAMS = ("systemctl", "systemd-analyze", "unshare", "nsenter", "setpriv", "mount", "pivot_root")
_SYSTEMD = Path("/lib/systemd/systemd")


def why_not() -> str | None:
    """What this machine lacks for it; None when nothing."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or not _SYSTEMD.exists():
        return f"systemd cannot be booted here: no {', '.join(missing) or _SYSTEMD}"
    if os.geteuid() != 0:
        return "only root can boot systemd in namespaces"
    if _cgroups() is None:
        return "there is no writable cgroup hierarchy of version 2"
    namespaces = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--propagation", "private"]
    mount = ["mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    tried = subprocess.run([*namespaces, *mount], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"namespaces are not permitted here: {tried.stderr.strip()}"
    said = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout
    version = int(said.split()[1].partition(".")[0].partition("~")[0])
    return None if version >= 252 else f"the unit needs systemd 252 or newer, and this is {version}"


class System:
    """The booted system. `pid` is its PID 1, seen from outside; `cgroup` holds everybody in it."""

    def __init__(self, folder: Path, cgroup: Path) -> None:
        self.cgroup = cgroup
        self._console = folder / "console"
        (folder / "mnt").mkdir()
        python = f"{sys.base_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
        lent = [python, sysconfig.get_path("purelib"), str(ROOT)]
        command = [str(_BOOT), str(cgroup), str(folder / "mnt"), *lent, str(UNIT)]
        with self._console.open("wb") as out:
            self.outer = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        self.pid = 0

    def wait_until_it_is_up(self) -> None:
        self.pid = wait_until(self._first, "there is a first process", 60)
        wait_until(self._is_up, "systemd has booted", 60)

    def _first(self) -> int:
        """The pid of PID 1, once it is systemd."""
        self._must_live()
        with suppress(OSError):
            for child in Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        return 0

    def _is_up(self) -> bool:
        self._must_live()
        return self.run("systemctl", "is-active", "booted.target").stdout.strip() == "active"

    def _must_live(self) -> None:
        assert self.outer.poll() is None, self._console.read_text(errors="replace")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this machine inside."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False, timeout=120)

    def path(self, inside: str) -> Path:
        """A file of the system, seen from outside."""
        return Path(f"/proc/{self.pid}/root", inside.lstrip("/"))


@contextmanager
def booted() -> Iterator[System]:
    """A system that is up; at the end no process, mount, cgroup or folder of it is left."""
    remove_leftovers()
    with scratch_folder(on_disk=True) as folder, _new_cgroup(folder.name) as cgroup:
        system = System(folder, cgroup)
        try:
            system.wait_until_it_is_up()
            yield system
        finally:
            (cgroup / "cgroup.kill").write_text("1")
            system.outer.kill()
            system.outer.wait(20)


class Unit:
    """One instance of the unit: a pool by this name."""

    def __init__(self, system: System, pool: str) -> None:
        self.system = system
        self.pool = pool
        self.name = f"deadsure@{pool}.service"

    def configure(self, toml: str, password: str) -> None:
        """Write its configuration, and the password into the host's store of credentials."""
        self.system.path(f"/etc/deadsure/{self.pool}.toml").write_text(toml)
        secret = self.system.path(f"/etc/credstore/deadsure.{self.pool}.database_password")
        secret.write_text(f"{password}\n")
        secret.chmod(0o600)

    def drop_in(self, text: str) -> None:
        """Change the unit as an administrator does, for this instance."""
        folder = self.system.path(f"/etc/systemd/system/{self.name}.d")
        folder.mkdir()
        (folder / "test.conf").write_text(text)
        self.system.run("systemctl", "daemon-reload")

    def systemctl(self, verb: str) -> subprocess.CompletedProcess[str]:
        return self.system.run("systemctl", verb, self.name)

    def start(self) -> None:
        """Start it; systemd answers when it is ready."""
        done = self.systemctl("start")
        assert done.returncode == 0, f"{done.stderr}\n{self.log}"

    def end(self) -> None:
        """Stop it without patience."""
        self.system.run("systemctl", "stop", "--no-block", self.name)
        self.system.run("systemctl", "kill", "--signal=SIGKILL", self.name)
        self.systemctl("stop")

    def show(self, name: str) -> str:
        """A property as systemd sees it."""
        return self.system.run("systemctl", "show", "--value", "--property", name, self.name).stdout.strip()

    @property
    def log(self) -> str:
        """What the journal has of it: what it printed, and what PID 1 said of it."""
        self.system.run("journalctl", "--sync")
        return self.system.run("journalctl", "--quiet", "--no-pager", "--output", "cat", "--unit", self.name).stdout

    def processes(self) -> set[int]:
        """All of its processes, by their pids outside."""
        group = self.system.cgroup / self.show("ControlGroup").lstrip("/")
        found: set[int] = set()
        for file in group.rglob("cgroup.procs") if self.show("ControlGroup") else ():
            with suppress(OSError):
                found.update(int(pid) for pid in file.read_text().split())
        return {pid for pid in found if alive(pid)}

    def supervisor(self) -> int:
        """The pid outside of its main process."""
        inside = self.show("MainPID")
        return next(pid for pid in self.processes() if _pid_inside(pid) == inside)


def _pid_inside(pid: int) -> str:
    with suppress(OSError):
        found = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return found[1] if found else ""
    return ""


def _cgroups() -> Path | None:
    """Where the second version of cgroups is mounted, and we may make some."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(where)
    return None


@contextmanager
def _new_cgroup(name: str) -> Iterator[Path]:
    """An empty cgroup; gone at the end, with those below it. So are those of killed runs, whose folders are gone."""
    parent = _cgroups()
    assert parent is not None
    for cgroup in parent.glob("deadsure-tests-*"):
        if not Path(tempfile.gettempdir(), cgroup.name).exists():
            with suppress(OSError):
                _remove(cgroup)
    made = parent / name
    made.mkdir()
    try:
        yield made
    finally:
        wait_until(lambda: "populated 0" in (made / "cgroup.events").read_text(), f"{made} is empty")
        _remove(made)


def _remove(cgroup: Path) -> None:
    for below in sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True):
        below.rmdir()
    cgroup.rmdir()
