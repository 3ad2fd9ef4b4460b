"""The wheel holds what belongs in it, and runs in an empty environment beside files that have our folders' names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from support.product import NOT_SHIPPED, PACKAGE, ROOT, modules, tracked_files

pytestmark = pytest.mark.timeout(600)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as a clone would have it, in a folder whose name is no Python name."""
    target = tmp_path_factory.mktemp("clone") / "celery-agents-clone"
    for path in tracked_files():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target / path)
    return target


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, clone, cwd=target)
    (found,) = target.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel with what it requires, and no extra."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=True)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=home)
    return home / "bin" / "python"


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """The folder of a service that has its own files with the names of our folders."""
    for name in ("tasks", "config", "worker", "demo", "testing"):
        (tmp_path / f"{name}.py").write_text(f"MINE = {name!r}\n")
    return tmp_path


def shipped(path: Path) -> bool:
    if path.parts[0] in NOT_SHIPPED:
        return path.parts[0] == "docs" and path.suffix == ".md"
    if path.parts[:3] == ("tasks", "http", "page"):
        return True
    return path.suffix in {".py", ".pyi", ".lua", ".template"} or path.parts[0] == "deploy" or path.name == "py.typed"


def test_the_wheel_holds_exactly_what_belongs_to_the_product(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist()}
    inside = {name.relative_to(PACKAGE) for name in names if name.parts[0] == PACKAGE}
    wanted = {path for path in tracked_files() if shipped(path)}
    assert wanted - inside == set(), "missing in the wheel: does each folder have an __init__.py?"
    assert inside - wanted == set(), "in the wheel without being wanted"
    assert {name.parts[0] for name in names} == {PACKAGE, *(n.parts[0] for n in names if "dist-info" in n.parts[0])}


def test_the_licences_of_vendored_files_are_in_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (
            archive.read(each).decode() for each in archive.namelist() if each.endswith("dist-info/METADATA")
        )
        licences = [each for each in archive.namelist() if ".dist-info/licenses/" in each]
    for name in ("LICENSE", "tasks/http/page/vendor/LICENSE-preact", "tasks/http/page/vendor/LICENSE-htm"):
        assert f"License-File: {name}\n" in metadata
        assert [each for each in licences if each.endswith(f"/{name}")]


EXTRAS = {
    "ag_ui", "h11", "httpx2", "mcp", "mcp_types", "psycopg", "pydantic_ai", "pytest", "sqlalchemy", "sse_starlette", "starlette",
    "uvicorn",
}  # fmt: skip
"""Modules that only extras bring, and what the testing module needs."""


def test_every_module_imports_without_extras_beside_files_of_the_same_names(python: Path, service: Path) -> None:
    code = f"""
        import importlib, sys
        import tasks, config, worker, demo, testing
        for name in {sorted(modules())!r}:
            if not name.endswith("__main__"):
                try:
                    importlib.import_module(name)
                except ModuleNotFoundError as error:
                    assert error.name in {EXTRAS!r}, (name, error)
        assert (tasks.MINE, config.MINE, worker.MINE, demo.MINE, testing.MINE) == (
            "tasks", "config", "worker", "demo", "testing"
        )
        assert not [name for name in sys.modules if name.startswith("celery_agents") and "site-packages" not in
                    (getattr(sys.modules[name], "__file__", None) or "site-packages")]
    """
    (service / "main.py").write_text(textwrap.dedent(code))
    run(python, "main.py", cwd=service)


@pytest.mark.parametrize("command", [("--version",), ("--help",), ("submit", "--help")])
def test_the_command_answers_in_the_folder_of_a_service(python: Path, service: Path, command: tuple[str, ...]) -> None:
    installed = run(python.parent / "celery-agents", *command, cwd=service)
    as_module = run(python, "-m", PACKAGE, *command, cwd=service)
    assert installed.strip()
    assert as_module.strip()


def test_the_requirements_are_consistent(python: Path, service: Path) -> None:
    run(python, "-m", "pip", "check", cwd=service)


def test_a_clone_with_a_hyphen_loads_the_product_under_one_name(clone: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    # What the product needs comes from the environment of these tests; only the clone itself is installed.
    (purelib,) = home.glob("lib/python*/site-packages")
    (purelib / "requirements.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", clone, cwd=tmp_path)
    run(python, "-m", "pytest", "-q", "-c", "tests/pytest.ini", "tests/unit/test_one_name.py", cwd=clone)


def test_the_wheel_is_of_the_version_that_its_program_tells(wheel: Path, python: Path, tmp_path: Path) -> None:
    told = run(python.with_name("celery-agents"), "--version", cwd=tmp_path).removeprefix("celery-agents ").strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+\.dev0\+files\.[0-9a-f]{12}", told), "this clone has no commits"
    assert wheel.name.split("-")[1] == told


def test_a_source_archive_makes_a_wheel_of_its_own_version(clone: Path, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", clone]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        run(*git, *arguments, cwd=tmp_path)
    try:
        uv = Path(sys.executable).with_name("uv")
        run(uv, "build", "--quiet", "--sdist", "--out-dir", tmp_path, clone, cwd=tmp_path)
    finally:
        shutil.rmtree(clone / ".git")
    (archive,) = tmp_path.glob("*.tar.gz")
    assert "+g" in archive.name
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, archive, cwd=tmp_path)
    (found,) = tmp_path.glob("*.whl")
    assert found.name.split("-")[1] == archive.name.removesuffix(".tar.gz").split("-", 1)[1]
