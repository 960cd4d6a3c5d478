"""The house: what is packed and what is not, and that every class exists once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import deadsure
import pytest
from deadsure.runtime import model, sql
from kit import smoke
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Folders at the root that hold Python files and are no part of the product.
BESIDE = {"benchmarks", "docs", "examples", "tests", "deploy"}
#: What a checkout may hold and the package must not: also what an earlier build has left behind.
ARTEFACTS = shutil.ignore_patterns(".venv*", ".git", "__pycache__", ".*_cache", "*.egg-info", "build", "dist")


def folder_of(package: str) -> Path:
    return ROOT.joinpath(*package.split(".")[1:])


# --- one package, once


def test_the_list_of_packages_is_the_tree() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    found = {"deadsure"}
    for init in ROOT.glob("[a-z]*/**/__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts[0] not in BESIDE | {"build", "dist"}:
            found.add(".".join(("deadsure", *parts)))
    assert sorted(listed) == sorted(found)


def test_every_folder_of_the_product_with_python_files_is_a_package() -> None:
    for file in ROOT.glob("[a-z]*/**/*.py"):
        if file.relative_to(ROOT).parts[0] not in BESIDE | {"build", "dist"}:
            assert (file.parent / "__init__.py").exists(), f"{file} is in no package and would not be shipped"


def test_the_root_holds_no_other_python_file() -> None:
    assert sorted(file.name for file in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_the_package_is_imported_through_ci_path() -> None:
    source = ROOT / ".ci" / "path" / "deadsure"
    assert source.is_symlink()
    assert os.readlink(source) == "../.."
    assert [Path(os.path.abspath(folder)) for folder in deadsure.__path__] == [source]
    assert Path(os.path.abspath(model.__file__)) == source / "runtime" / "model.py"


def test_no_file_is_imported_under_two_names() -> None:
    names: dict[Path, set[str]] = {}
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/").resolve()
        if file.is_relative_to(ROOT) and not file.relative_to(ROOT).parts[0].startswith(".venv"):
            names.setdefault(file, set()).add(name)
    twice = {file: found for file, found in names.items() if len(found) > 1}
    assert twice == {}
    product = [found for file, found in names.items() if file.relative_to(ROOT).parts[0] not in BESIDE]
    assert {name.split(".")[0] for found in product for name in found} == {"deadsure"}


# --- what the code promises about itself


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    files = sorted(file.name for file in folder_of("deadsure.runtime.sql").joinpath("migrations").iterdir())
    assert all(re.fullmatch(r"\d{4}_[a-z0-9_]+\.sql", name) for name in files), files
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))
    assert [migration.number for migration in sql.migrations()] == list(range(1, len(files) + 1))


def statements() -> Iterator[tuple[str, str]]:
    for file in sorted(folder_of("deadsure.runtime.sql").glob("*.sql")):
        named = re.split(r"^-- name: (\w+)$", file.read_text(), flags=re.MULTILINE)
        yield from zip(named[1::2], named[2::2], strict=True)


@pytest.mark.parametrize(("name", "text"), [pytest.param(*found, id=found[0]) for found in statements()])
def test_every_statement_says_what_it_is_for(name: str, text: str) -> None:
    assert text.lstrip("\n").startswith("-- "), f"the statement {name} has no comment under its name"


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    embedded = PROJECT["project"]["optional-dependencies"]["embedded"]
    for text in [*PROJECT["project"]["dependencies"], *embedded]:
        operators = {bound.operator for bound in Requirement(text).specifier}
        assert operators == {">=", "<"}, text


def test_the_development_packages_bring_the_embedded_postgresql() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras["embedded"]) <= set(extras["dev"])


def test_the_lock_holds_names_versions_and_hashes_and_nothing_else() -> None:
    line = r"[a-z0-9-]+==[0-9][0-9a-z.]* \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
    lines = (ROOT / ".ci" / "requirements.txt").read_text().splitlines()
    assert [text for text in lines if not re.fullmatch(line, text)] == []


def test_the_lock_satisfies_every_range() -> None:
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / ".ci" / "requirements.txt").read_text(), re.MULTILINE))
    for text in [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        assert Version(pinned[wanted.name.lower()]) in wanted.specifier, text


# --- what is really built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source archive, built from a copy in which an old build lies about."""
    source = tmp_path_factory.mktemp("source") / "checkout"
    shutil.copytree(ROOT, source, symlinks=True, ignore=ARTEFACTS)
    stale = source / "build" / "lib" / "deadsure" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(source / "dist"), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, env=_clean(), check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return source / "dist"


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    expected = {"deadsure/py.typed"}
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        expected |= {"/".join((*package.split("."), file.name)) for file in folder_of(package).glob("*.py")}
    text = folder_of("deadsure.runtime.sql")
    expected |= {f"deadsure/runtime/sql/{file.relative_to(text)}" for file in text.glob("**/*.sql")}
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        files = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
        metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        said = wheel.read(metadata).decode()
    assert files == expected
    assert "License-Expression: Apache-2.0" in said
    assert any(file.endswith("/LICENSE") for file in wheel.namelist())


def test_the_source_archive_holds_no_old_build(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = archive.getnames()
    assert any(name.endswith("runtime/states.py") for name in names)
    assert [name for name in names if "/build" in name or "stale" in name or "/.ci" in name] == []
    beside = {"CHANGELOG.md", "docs/operations.md", "deploy/postgres/roles.sql"}
    assert {name.partition("/")[2] for name in names} >= beside


@pytest.fixture(scope="module")
def clean(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment in which the wheel is installed."""
    clean = tmp_path_factory.mktemp("environment") / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clean], check=True, env=_clean())
    python = clean / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(next(built.glob("*.whl")))], check=True, env=_clean())
    site = Path(_said(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    # What it depends on comes from where these tests run. Lines of a .pth file are only searched after `site` itself.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return clean


def test_the_wheel_installs_and_works_without_the_checkout(clean: Path) -> None:
    python = clean / "bin" / "python"
    assert _said(clean / "bin" / "deadsure", "--version") == f"deadsure {deadsure.__version__}"
    assert _said(python, "-m", "deadsure", "--version") == f"deadsure {deadsure.__version__}"
    assert Path(_said(python, "-c", "from deadsure.runtime import model; print(model.__file__)")).is_relative_to(clean)
    printed = _said(python, "-m", "deadsure", "migrate", "--sql")
    assert all(migration.text.strip() in printed for migration in sql.migrations())


def test_what_the_wheel_installs_runs_a_task(clean: Path) -> None:
    assert smoke.run_a_task(clean / "bin" / "deadsure") == smoke.RESULT


def test_the_version_stands_in_one_place(built: Path) -> None:
    """The code says it, the package's metadata are made from that, and the CHANGELOG goes on from there."""
    assert "version" not in PROJECT["project"]
    assert [file.name.split("-")[1] for file in built.glob("*.whl")] == [deadsure.__version__]
    assert (built / f"deadsure-{deadsure.__version__}.tar.gz").exists()
    headings = re.findall(r"^## \[(.+?)\]( - \d{4}-\d\d-\d\d)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0][0] in ("Unreleased", deadsure.__version__)
    assert all(date for _, date in headings[1:]), "a released version has its date"
    assert all(Version(name) <= Version(deadsure.__version__) for name, _ in headings if name != "Unreleased")


def _said(program: Path, *arguments: str) -> str:
    """What the program printed, run from a folder that is nothing to it, without any path to the checkout."""
    run = subprocess.run([program, *arguments], capture_output=True, text=True, env=_clean(), cwd="/", check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
