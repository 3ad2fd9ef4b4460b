"""The base images: one name for each everywhere, which a digest may follow; and the script that finds digests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from support.deployed import DEPLOY
from support.product import ROOT

TEMPLATE = ROOT / "tasks" / "local" / "project_template"
FILES = [
    DEPLOY / "docker" / "Dockerfile", DEPLOY / "pin-images", DEPLOY / "kubernetes" / "redis.yaml",
    ROOT / "docker-compose.yml", TEMPLATE / "Dockerfile.template", TEMPLATE / "compose.yaml.template",
]  # fmt: skip
# A name and its tag, and its digest where somebody has pinned it.
IMAGE = re.compile(r"(?<!/)\b((?:python|redis):[0-9][\w.-]*)(@sha256:[0-9a-f]{64})?(?![\w@])")
DIGEST = "sha256:" + "0123456789abcdef" * 4


def named(path: Path) -> set[str]:
    return {f"{name}{digest}" for name, digest in IMAGE.findall(path.read_text(encoding="utf-8"))}


def test_each_file_names_the_same_images() -> None:
    everywhere = set[str]().union(*(named(path) for path in FILES))
    assert sorted(each.partition(":")[0] for each in everywhere) == ["python", "redis"], everywhere
    assert all(named(path) for path in FILES)


@pytest.mark.parametrize("path", [DEPLOY / "docker" / "Dockerfile", TEMPLATE / "Dockerfile.template"], ids=str)
def test_a_base_image_can_be_given_by_its_digest(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(bases) == {"${PYTHON_IMAGE}"}
    assert text.index("\nARG PYTHON_IMAGE=") < text.index("\nFROM ")


@pytest.mark.parametrize("path", [ROOT / "docker-compose.yml", TEMPLATE / "compose.yaml.template"], ids=str)
def test_a_compose_file_takes_both_images_from_its_variables(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"image: (\S*redis\S*)", text) == ["${REDIS_IMAGE:-redis:8}"]
    assert re.findall(r"PYTHON_IMAGE: (\S+)", text) == ["${PYTHON_IMAGE:-python:3.12-slim-bookworm}"]


def test_kubernetes_takes_the_tag_or_the_digest_of_its_kustomization() -> None:
    images = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert {each["name"] for each in images} == {"celery-agents", "redis"}
    assert all(("newTag" in each) != ("digest" in each) for each in images)


@pytest.mark.parametrize("digest", [DIGEST, "<no value>"])
def test_the_script_prints_digests_as_a_compose_file_reads_them_or_says_why_not(tmp_path: Path, digest: str) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\ncase $1 in image) echo 'library/{digest}' | sed 's|library/sha|redis@sha|';; esac\n")
    docker.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", DEPLOY / "pin-images"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if digest == DIGEST:
        assert done.stdout.splitlines() == [
            f"PYTHON_IMAGE=python:3.12-slim-bookworm@{DIGEST}", f"REDIS_IMAGE=redis:8@{DIGEST}",
        ]  # fmt: skip
        assert all(IMAGE.search(line) for line in done.stdout.splitlines())
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert "has no digest" in done.stderr
