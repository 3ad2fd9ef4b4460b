"""The version names the build, wherever it was made: in a clone, from an archive, without git."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from celery_agents.config.version import RELEASE, describe_sources, read_version

COMMIT = re.compile(re.escape(RELEASE) + r"\.dev202601020304\+g[0-9a-f]{12}")
FILES = re.compile(re.escape(RELEASE) + r"\.dev0\+files\.[0-9a-f]{12}")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of the product in small, with one that does not count."""
    for name, text in {
        "config/a.py": "1",
        "worker/b.lua": "2",
        "__init__.py": "",
        "setup.py": "",
        "NOTES": "n",
    }.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


def git(folder: Path, *arguments: str) -> None:
    day = "2026-01-02T05:04:00+02:00"
    person = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    env = {**os.environ, **person, "GIT_COMMITTER_DATE": day, "GIT_AUTHOR_DATE": day}
    subprocess.run(["git", *arguments], cwd=folder, env=env, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")


def test_a_clone_has_its_commit_and_the_minute_in_utc(tree: Path) -> None:
    commit(tree)
    assert COMMIT.fullmatch(read_version(tree)), read_version(tree)


def test_each_change_after_the_commit_has_a_version_of_its_own(tree: Path) -> None:
    commit(tree)
    clean = read_version(tree)
    (tree / "NOTES").write_text("nothing of the product")
    assert read_version(tree) == clean
    (tree / "worker" / "b.lua").write_text("3")
    first = read_version(tree)
    (tree / "config" / "new.py").write_text("")
    second = read_version(tree)
    assert len({clean, first, second}) == 3
    assert all(re.fullmatch(re.escape(clean) + r"\.d[0-9a-f]{8}", each) for each in (first, second))


def test_files_without_git_have_a_digest_that_follows_their_contents(tree: Path) -> None:
    first = read_version(tree)
    assert FILES.fullmatch(first), first
    assert read_version(tree) == first
    (tree / "config" / "a.py").write_text("changed")
    assert read_version(tree) != first


def test_an_unpacked_archive_has_the_version_that_was_packed(tree: Path) -> None:
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: celery-agents\nVersion: 0.2.0.dev7+gabc\n")
    assert read_version(tree) == "0.2.0.dev7+gabc"


def test_a_repository_around_the_files_is_not_asked(tree: Path) -> None:
    commit(tree.parent)
    assert FILES.fullmatch(read_version(tree))


def test_another_repository_in_the_environment_is_not_asked(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a hook of git, which sets these."""
    commit(tree)
    monkeypatch.setenv("GIT_DIR", str(tree / "nowhere"))
    monkeypatch.setenv("GIT_WORK_TREE", "/")
    assert COMMIT.fullmatch(read_version(tree))


def test_a_machine_without_git_takes_the_digest(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tree)
    monkeypatch.setenv("PATH", "")
    assert FILES.fullmatch(describe_sources(tree))
