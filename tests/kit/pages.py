"""Pages whose examples are run: the marked blocks of a page, and a reader who types or imports them.

A mark is a comment above a fenced block: `<!-- run: NAME -->` is typed into a shell, `<!-- shows: NAME -->` is what it
printed, `<!-- file: NAME -->` is a part of the file of that name.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from .pool import ROOT, SOURCE

_BLOCK = re.compile(r"^<!-- (\w+): ([\w./-]+) -->\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Page:
    """One page of the documentation."""

    path: Path

    @classmethod
    def of(cls, name: str) -> Page:
        return cls(ROOT / "docs" / name)

    @property
    def text(self) -> str:
        return self.path.read_text()

    def blocks(self, mark: str) -> dict[str, str]:
        """The blocks with this mark by name, in the page's order; those of one name are parts of one text."""
        found: dict[str, list[str]] = {}
        for kind, name, text in _BLOCK.findall(self.text):
            if kind == mark:
                found.setdefault(name, []).append(text)
        return {name: "\n\n".join(texts) for name, texts in found.items()}

    def fenced(self, language: str) -> list[str]:
        """Every block in this language, marked or not."""
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE)

    def section(self, heading: str) -> str:
        """What stands under this heading, up to the next one of any level."""
        in_blocks = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
        text = in_blocks.sub(lambda block: block[0].replace("\n#", "\n #"), self.text)  # a comment is no heading
        parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
        return parts[parts.index(heading) + 1]

    def table(self, heading: str) -> list[list[str]]:
        """The rows of the table under this heading, without its head; cells as they are written."""
        lines = [line for line in self.section(heading).splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        return rows[2:]


def code(cell: str) -> str:
    """What stands in backquotes in this cell. There must be exactly one."""
    (found,) = _CODE.findall(cell)
    return str(found)


def codes(cell: str) -> list[str]:
    """All that stands in backquotes."""
    return _CODE.findall(cell)


@dataclass
class Shell:
    """Somebody who types what a page says, in one shell, in a folder of their own.

    `replace` is for what is another here: the address of the pool. `env` is added to the environment.
    """

    folder: Path
    replace: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        program = self.folder / "bin" / "deadsure"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m deadsure "$@"\n')
        program.chmod(0o755)

    def type(self, text: str) -> str:
        """Run it after what was typed before (its variables are still there), and return what it printed."""
        for here, there in self.replace.items():
            text = text.replace(here, there)
        kept = self.folder / "variables"
        script = f"[ -e {kept} ] && . {kept}\n{text}\n{{ set | grep -E '^[a-z]+=' || true; }} > {kept}\n"
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True, text=True, env=self._environment(), cwd=self.folder, timeout=120, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def variable(self, name: str) -> str:
        lines = (self.folder / "variables").read_text().splitlines()
        return next(shlex.split(line.split("=", 1)[1])[0] for line in lines if line.startswith(f"{name}="))

    def _environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DEADSURE_")}
        return kept | {"PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "error", "PATH": path} | dict(self.env)


def load(name: str, text: str, folder: Path) -> ModuleType:
    """Import a page's Python as the module `name`, from a file in `folder`, so that its classes can be looked up."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def same(text: str) -> str:
    """A printed text without what differs from run to run, such as ids and times, and what only the wire needs."""
    text = "\n".join(line.rstrip() for line in text.splitlines())
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"[0-9a-f]{32}", "CURSOR", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME", text)
    return re.sub(r"^(date|content-length): .*\n", "", text, flags=re.MULTILINE).strip()
