"""The folder of a pool's lock files: where it is, and that nobody else can meddle with it.

Who can open a lock file can hold its lock, and who can replace it can have two supervisors believe that they are
alone. So the folder must be ours and closed to the writing of others; one that we make is closed altogether.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..runtime.errors import ConfigurationError


def default_runtime_dir(variables: Mapping[str, str]) -> Path:
    """$RUNTIME_DIRECTORY (systemd), else $XDG_RUNTIME_DIR/deadsure, else /run/deadsure for root, else a private one.

    An XDG_RUNTIME_DIR of somebody else (root after `su` or `sudo`) is passed over, as its specification says.
    """
    given = variables.get("RUNTIME_DIRECTORY", "").split(":")[0]  # systemd lists several with colons
    if given:
        return Path(given).resolve()  # with DynamicUser= it is a link of systemd's
    xdg = Path(variables.get("XDG_RUNTIME_DIR", ""))
    if xdg.is_absolute() and _is_ours(xdg):
        return xdg / "deadsure"
    if os.geteuid() == 0:
        return Path("/run/deadsure")
    return Path(tempfile.gettempdir()) / f"deadsure-{os.geteuid()}"


def prepare_runtime_dir(path: Path) -> Path:
    """The folder, made with mode 0700 when it is absent. Raises ConfigurationError when it cannot be trusted."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise ConfigurationError(f"the runtime_dir {path} is not a folder") from None
    except OSError as error:
        raise ConfigurationError(f"cannot make the runtime_dir {path}: {error.strerror}; name another one") from None
    check_runtime_dir(path)
    return path


def check_runtime_dir(path: Path) -> None:
    """Raises ConfigurationError unless `path` is a folder of this user that nobody else can write to."""
    try:
        found = path.lstat()
    except OSError as error:
        raise ConfigurationError(f"cannot look at the runtime_dir {path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(f"the runtime_dir {path} is not a folder (a link to one is refused)")
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"the runtime_dir {path} belongs to the user {found.st_uid} and not to {os.geteuid()}, who runs deadsure: "
            "name another one, or change its owner"
        )
    if found.st_mode & 0o022:
        raise ConfigurationError(f"others can write to the runtime_dir {path}: chmod 0700 {path}")


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False
