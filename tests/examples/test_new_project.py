"""`celery-agents new`: the project passes its own tests and strict type checkers, runs, and hides nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_agents.tasks.local.new_project import check_project_name
from celery_agents.worker.errors import ConfigurationError

from support import fork_server
from support.documents import ROOT
from support.types import check_with_mypy, check_with_pyright


def new(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("celery-agents")), "new", name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    done = new(tmp_path, "my-shop")
    assert done.returncode == 0, done.stderr
    assert "celery-agents up --agents my_shop.agents --reload" in done.stdout
    return tmp_path / "my-shop"


def test_its_own_tests_pass(project: Path) -> None:
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project, env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_it_installs_what_the_first_page_does(project: Path) -> None:
    def extras(text: str) -> set[str]:
        return {extra for group in re.findall(r"celery-agents\[([a-z,]+)\]", text) for extra in group.split(",")}

    assert extras((project / "pyproject.toml").read_text()) == extras((ROOT / "docs" / "quickstart.md").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long
def test_it_is_strictly_typed(project: Path) -> None:
    check_with_mypy(project)
    check_with_pyright(project)


def test_its_agent_answers(project: Path, redis_url: str, new_worker: Callable[..., Any]) -> None:
    new_worker(agents="my_shop.agents", env={"PYTHONPATH": str(project)})
    command = [sys.executable, "-P", "-m", "celery_agents", "submit", "support", "Order 17 arrived broken", "--wait"]
    done = fork_server.run(command, env={**os.environ, "CELERY_AGENTS_REDIS_URL": redis_url})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "I am sorry about that. I refunded 24.00 for order 17.\n"


def test_its_settings_and_its_compose_file_fit_together(project: Path) -> None:
    lines = [line for line in (project / ".env.example").read_text().splitlines() if line and line[0] != "#"]
    settings = dict(line.split("=", 1) for line in lines)
    assert settings["CELERY_AGENTS_AGENTS"] == "my_shop.agents"
    compose = yaml.safe_load((project / "compose.yaml").read_text())
    assert set(compose["services"]) == {"redis", "worker", "flower"}
    assert compose["services"]["worker"]["environment"]["CELERY_AGENTS_REDIS_URL"] == "redis://redis:6379/0"
    assert "{{" not in "".join(path.read_text() for path in project.rglob("*") if path.is_file())


def test_an_existing_folder_is_refused_and_left_as_it_is(project: Path) -> None:
    (project / "mine.txt").write_text("mine")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    done = new(project.parent, "my-shop")
    assert done.returncode == 2
    assert "exists, and nothing in it was changed" in done.stderr
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "name",
    ["", " ", "../x", "a/b", "1shop", "-shop", "shop-", "my__shop", "ü", "x" * 51, "class", "json", "celery", "redis",
     "celery-agents", "tests", "my shop", "a.b", "True\n"],
)  # fmt: skip
def test_a_name_that_cannot_be_a_package_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be a project's name"):
        check_project_name(name)


def test_names_become_packages() -> None:
    assert check_project_name("my-shop") == "my_shop"
    assert check_project_name("Support_Desk2") == "support_desk2"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        assert "cannot be made" in new(tmp_path, "my_shop").stderr
    finally:
        tmp_path.chmod(0o700)
