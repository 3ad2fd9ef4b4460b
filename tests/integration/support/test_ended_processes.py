"""Processes that have ended are left alone, and whoever has their number now."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_agents.tasks.local.child_processes import Child

from support.processes import Process, is_gone
from support.wait import wait_until

SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
LEAVES_ONE = [sys.executable, "-S", "-c", "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"]


def started(tmp_path: Path) -> Process:
    process = Process("child", [sys.executable, "-S", "-c", ""], tmp_path)
    process.start()
    process.wait(10)
    return process


def ended_child(tmp_path: Path) -> Child:
    child = Child("child", [sys.executable, "-S", "-c", ""], tmp_path / "child.log")
    child._process.wait(10)  # pyright: ignore[reportPrivateUsage]
    return child


@pytest.mark.parametrize(
    ("ended", "popen", "end"),
    [
        (started, "_popen", lambda process: process.end()),
        (started, "_popen", lambda process: process.kill()),
        (ended_child, "_process", lambda child: child.stop(1.0)),
        (ended_child, "_process", lambda child: child.kill()),
    ],
    ids=["end", "kill", "stop of a child", "kill of a child"],
)
def test_another_process_with_the_number_of_one_that_has_ended_runs_on(
    ended: Callable[[Path], Any], popen: str, end: Callable[[Any], None], tmp_path: Path
) -> None:
    process = ended(tmp_path)
    with Process("other", SLEEPS, tmp_path) as other:
        getattr(process, popen).pid = other.pid  # as when the numbers have gone round
        end(process)
        with pytest.raises(AssertionError, match="still runs"):
            other.wait(0.5)


def test_what_a_process_that_has_ended_left_in_its_group_ends_with_it(tmp_path: Path) -> None:
    child = Child("child", LEAVES_ONE, tmp_path / "child.log")
    child._process.wait(10)  # pyright: ignore[reportPrivateUsage]
    left = int((tmp_path / "child.log").read_text())
    os.kill(left, 0)
    child.kill()
    wait_until(lambda: is_gone(left), "what was left has ended")
