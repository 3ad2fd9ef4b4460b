"""A build of this product as its repository has it, whose programs run beside those of the present one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.processes import TESTS, Process
from support.product import PACKAGE, ROOT

PROGRAMS: Final = Path(__file__).parent
STORED: Final = "stored in "


class BuildMissing(Exception):
    """The repository of this clone has no such build."""


@dataclass(frozen=True, slots=True)
class Build:
    """A build.

    Attributes:
        tests: Its folder of tests, which is on the path of its programs.
    """

    tests: Path

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.tests)}

    def read(self, url: str, folder: Path) -> dict[str, Any]:
        """What its readers say of all sessions."""
        done = self._run(PROGRAMS / "read.py", url, folder)
        assert done.returncode == 0, done.stderr[-3_000:]
        return json.loads(done.stdout)

    def command(self, url: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run its `celery-agents`."""
        return self._run("-m", PACKAGE, *words, CELERY_AGENTS_REDIS_URL=url)

    @contextlib.contextmanager
    def store(self, folder: Path, sessions: int, seed: int) -> Iterator[str]:
        """The URL of a Redis in which workers of this build have stored random sessions."""
        words = [sys.executable, "-P", PROGRAMS / "write.py", folder / "lab", sessions, seed]
        writer = Process("writer", list(map(str, words)), folder, {"PYTHONPATH": str(self.tests)}, fresh=True)
        with writer:
            writer.wait_for_text(STORED, 900)
            yield writer.text().partition(STORED)[2].split()[0]

    def _run(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", *map(str, words)]
        return subprocess.run(command, env={**self._env, **env}, capture_output=True, text=True, check=False)


def earlier_build(commit: str, folder: Path) -> Build:
    """The build of a commit, unpacked into a folder. It runs with the libraries of this environment.

    Raises:
        BuildMissing: The repository does not have it.
    """
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise BuildMissing(f"this clone does not have {commit}: {packed.stderr.decode(errors='replace').strip()}")
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=packed.stdout, check=True)
    (folder / "tests" / PACKAGE).symlink_to(folder)  # goes before the one that is installed
    return Build(folder / "tests")


def present_build() -> Build:
    """The build that is tested."""
    return Build(TESTS)
