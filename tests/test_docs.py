"""README and docs: what they show is run, what they name exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kit.pool import Pool, dsn_text
from kit.store import Store
from kit.wait import wait_until

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
README = (ROOT / "README.md").read_text()


# --- what is shown is run


def _blocks(mark: str) -> dict[str, str]:
    """The fenced blocks of the README that stand under `<!-- MARK: NAME -->`."""
    found = re.findall(rf"^<!-- {mark}: ([a-z-]+) -->\n```\w*\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return dict(found)


@dataclass
class Reader:
    """Somebody who types what the README says, in one shell, against a pool that has another address."""

    pool: Pool
    folder: Path
    typed: list[str] = field(default_factory=list)

    def type(self, name: str) -> str:
        """Run this block after the ones before it (their variables are still there), and return what it printed."""
        text = _blocks("run")[name].replace("http://127.0.0.1:8470", f"http://127.0.0.1:{self.pool.port}")
        kept = self.folder / "variables"
        script = f"[ -e {kept} ] && . {kept}\n{text}\nset | sed -nE '/^(id|pid)=/p' > {kept}\n"
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True, text=True, env=self._environment(), cwd=self.folder, check=False,
        )
        assert ran.returncode == 0, f"{name}: {ran.stderr}"
        return ran.stdout

    def variable(self, name: str) -> str:
        lines = (self.folder / "variables").read_text().splitlines()
        return next(shlex.split(line.split("=", 1)[1])[0] for line in lines if line.startswith(f"{name}="))

    def _environment(self) -> dict[str, str]:
        program = self.folder / ".venv" / "bin" / "deadsure"
        if not program.exists():
            program.parent.mkdir(parents=True)
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m deadsure "$@"\n')
            program.chmod(0o755)
        return os.environ | {
            "PYTHONPATH": str(ROOT / ".ci" / "path"),
            "DEADSURE_DATABASE_DSN": dsn_text(self.pool.database),
            "DEADSURE_URL": f"http://127.0.0.1:{self.pool.port}",
            "PYTHONWARNINGS": "error",
        }


def _same(text: str) -> str:
    """A printed text without what differs from run to run: ids and times."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", "TIME", text).strip()


@pytest.fixture
def reader(new_pool: Callable[..., Pool], tmp_path: Path) -> Reader:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return Reader(new_pool(app="deadsure.drills.demo:app", workers=2).start(), tmp_path)


def test_the_readmes_first_task_comes_out_as_it_says(reader: Reader) -> None:
    reader.type("first-task")
    reader.pool.wait_for(reader.variable("id"), "succeeded")
    assert _same(reader.type("first-result")) == _same(_blocks("shows")["first-result"])


def test_the_readmes_first_kill_comes_out_as_it_says(reader: Reader) -> None:
    reader.type("sleep")
    task = reader.variable("id")
    reader.pool.wait_for(task, "running")
    wait_until(lambda: task in str(reader.pool.get("/workers").body), "its worker says so")
    assert task in reader.type("kill")
    reader.pool.wait_for(task, "unknown")
    assert _same(reader.type("unknown")) == _same(_blocks("shows")["unknown"])
    wait_until(lambda: len(reader.pool.worker_pids()) == 2, "the dead one is replaced")
    assert int(reader.variable("pid")) not in reader.pool.worker_pids()


def test_the_readmes_drill_comes_out_as_it_says(reader: Reader) -> None:
    assert reader.type("drill") == _blocks("shows")["drill"]


def test_every_block_that_is_shown_or_run_is_used_here() -> None:
    assert set(_blocks("run")) == {"first-task", "first-result", "sleep", "kill", "unknown", "drill"}
    assert set(_blocks("shows")) == {"first-result", "unknown", "drill"}


def test_the_targets_of_make_that_the_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page


# --- what is named exists


@pytest.mark.parametrize("page", NAMES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page} links to {target}"


def _anchors(file: Path) -> Iterator[str]:
    for heading in re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", NAMES)
def test_every_test_and_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    there = {name for file in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named <= there, f"{page} names tests that are not there"
    pattern = r"`((?:cli|docs|drills|examples|httpapi|metrics|runtime|supervisor|tests|deploy)/[\w./-]+)`"
    missing = {path for path in re.findall(pattern, text) if not (ROOT / path).exists()}
    assert missing == set(), f"{page} names files that are not there"


def test_every_invariant_is_written_down_with_what_shows_it() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text()
    parts = re.split(r"^## (\d+)\. ", text, flags=re.MULTILINE)
    assert [int(number) for number in parts[1::2]] == list(range(1, 14))
    for number, part in zip(parts[1::2], parts[2::2], strict=True):
        assert "Shown by" in part or "Not in this release" in part, f"invariant {number}"


def test_every_folder_of_the_product_is_walked_through() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {init.parent.name for init in ROOT.glob("[a-z]*/__init__.py")}
    assert {name for name in folders if f"`{name}/" not in text and f"`{name}`" not in text} == set()


# --- what the docs promise and no other test shows


def test_no_transaction_is_open_while_a_handler_runs(
    new_pool: Callable[..., Pool], store: Store, tmp_path: Path
) -> None:
    pool = new_pool().start()
    task = pool.submit("block.fail", {"go": str(tmp_path / "go"), "log": str(tmp_path / "log")})
    wait_until((tmp_path / "log").exists, "it is inside its handler")
    sessions = store.query(
        "select state, xact_start from pg_stat_activity"
        " where datname = current_database() and application_name like 'deadsure worker%'"
    )
    assert sessions == [{"state": "idle", "xact_start": None}]
    (tmp_path / "go").touch()
    pool.wait_for(task, "succeeded")
