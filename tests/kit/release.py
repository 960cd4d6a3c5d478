"""`make release-check`: what stands in dist/ is installed as strangers would, on every Python it is for, and tried.

It takes its packages from where pip takes them, so it needs a network or a mirror. The tests do the same with the
packages that they run with (tests/test_house.py).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .smoke import RESULT, clean_environment, run_a_task, said

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13")


def main() -> int:
    """Check dist/. Returns 1 when something is not as it must be."""
    wheel, archive = _one("*.whl"), _one("*.tar.gz")
    version = wheel.name.split("-")[1]
    assert archive.name == f"deadsure-{version}.tar.gz", f"{archive.name} beside {wheel.name}"
    pythons = dict(_interpreters())
    for name, python in pythons.items():
        _try(name, python, f"{wheel}[embedded]", version, whole=True)
        _try(name, python, str(wheel), version, whole=False)
    name, python = next(iter(pythons.items()))
    _try(name, python, str(archive), version, whole=False)
    missing = [name for name in VERSIONS if name not in pythons]
    for name in missing:
        print(f"Python {name} is not installed here: not tried")
    dated = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if not dated:
        print(f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD` yet: this is no release")
    return 0 if dated and not missing else 1


def _try(name: str, python: Path, what: str, version: str, *, whole: bool) -> None:
    """Install it into a new environment; `whole` also runs a task, else it must say how to get a PostgreSQL."""
    folder = Path(tempfile.mkdtemp(prefix="deadsure-release-"))
    folder.chmod(0o755)
    try:
        environment = clean_environment() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True, env=environment)
        program = folder / "venv" / "bin" / "deadsure"
        for words in (["install", "--quiet", what], ["check"]):
            done = subprocess.run([program.parent / "pip", *words], env=environment, stdout=-1, text=True, check=False)
            assert done.returncode == 0, f"pip {words}: {done.stdout}"
        assert said(program, "--version") == f"deadsure {version}"
        assert "create table deadsure.tasks" in said(program, "migrate", "--sql")
        if whole:
            assert run_a_task(program) == RESULT
        else:
            refused = subprocess.run([program, "up"], capture_output=True, text=True, env=environment, check=False)
            assert refused.returncode == 1, refused
            assert "deadsure[embedded]" in refused.stderr, refused.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"Python {name}: {Path(what).name}: ok", flush=True)


def _one(pattern: str) -> Path:
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"dist/ must hold one {pattern}: {found}"
    return found[0]


def _interpreters() -> Iterator[tuple[str, Path]]:
    """Of each version, the one on the PATH or, where pyenv hides it, that of pyenv."""
    for version in VERSIONS:
        named = shutil.which(f"python{version}")
        hidden = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        for candidate in (*([Path(named)] if named else []), *hidden):
            probe = [candidate, "-c", "import venv, ensurepip"]
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                yield version, candidate
                break


if __name__ == "__main__":
    sys.exit(main())
