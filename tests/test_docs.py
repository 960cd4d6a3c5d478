"""README and docs: what they show is run, what they name exists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deadsure.drills.ledger_process import LedgerProcess
from kit.command import environment
from kit.pages import Page, Shell, same
from kit.pool import Pool, dsn_text
from kit.store import Store
from kit.wait import wait_until

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
README = Page(ROOT / "README.md")
TYPED, SHOWN = README.blocks("run"), README.blocks("shows")


# --- what is shown is run


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerProcess]:
    with LedgerProcess(tmp_path / "book", env=environment()) as running:
        yield running


@pytest.fixture
def pool(new_pool: Callable[..., Pool], ledger: LedgerProcess) -> Pool:
    variables = {"DEADSURE_LEDGER_URL": ledger.url}
    return new_pool(app="deadsure.drills.demo:app", workers=2, environment=variables).start()


@pytest.fixture
def shell(pool: Pool, tmp_path: Path) -> Shell:
    """Somebody who types what the README says, against a pool that has another address."""
    url = f"http://127.0.0.1:{pool.port}"
    here = {"http://127.0.0.1:8470": url, ".venv/bin/deadsure": "deadsure"}
    return Shell(tmp_path, here, {"DEADSURE_DATABASE_DSN": dsn_text(pool.database), "DEADSURE_URL": url})


def test_the_readmes_first_task_comes_out_as_it_says(shell: Shell, pool: Pool) -> None:
    shell.type(TYPED["first-task"])
    pool.wait_for(shell.variable("id"), "succeeded")
    assert same(shell.type(TYPED["first-result"])) == same(SHOWN["first-result"])


def test_the_readmes_first_kill_comes_out_as_it_says(shell: Shell, pool: Pool) -> None:
    shell.type(TYPED["sleep"])
    task = shell.variable("id")
    pool.wait_for(task, "running")
    wait_until(lambda: task in str(pool.get("/workers").body), "its worker says so")
    assert task in shell.type(TYPED["kill"])
    pool.wait_for(task, "unknown")
    assert same(shell.type(TYPED["unknown"])) == same(SHOWN["unknown"])
    wait_until(lambda: len(pool.worker_pids()) == 2, "the dead one is replaced")
    assert int(shell.variable("pid")) not in pool.worker_pids()


def test_the_readmes_killed_transfer_comes_out_as_it_says(shell: Shell, pool: Pool, ledger: LedgerProcess) -> None:
    shell.type(TYPED["transfer"])
    task = shell.variable("id")
    wait_until(lambda: ledger.history.effects[f"deadsure-{task}"], "the ledger has booked it")
    wait_until(lambda: task in str(pool.get("/workers").body), "its worker says so")
    shell.type(TYPED["kill-transfer"])
    pool.wait_for(task, "succeeded")
    assert _settled(shell.type(TYPED["reconciled"])) == _settled(SHOWN["reconciled"])
    assert ledger.history.posts[f"deadsure-{task}"] == 1


def _settled(text: str) -> str:
    return re.sub(r'("cpu_seconds"|"max_rss_kib"): [\d.]+', r"\1: N", same(text))


def test_the_readmes_drill_comes_out_as_it_says(shell: Shell) -> None:
    assert shell.type(TYPED["drill"]) == SHOWN["drill"]


def test_every_block_that_is_shown_or_run_is_used_here() -> None:
    used = set(re.findall(r"(TYPED|SHOWN)\[\"([a-z-]+)\"\]", Path(__file__).read_text()))
    assert used == {("TYPED", name) for name in TYPED} | {("SHOWN", name) for name in SHOWN}


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
