"""Restarts with growing pauses, and what `up` notices of files."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from celery_agents.tasks.local.child_processes import Child, ChildEnded
from celery_agents.tasks.local.development import ReadyStack
from celery_agents.tasks.local.supervisor import FileWatcher, LogFollower, SupervisedPart

from support.wait import wait_until


def ended_child(folder: Path) -> Child:
    child = Child("part", [sys.executable, "-S", "-c", "import os; os._exit(3)"], folder / "log")
    wait_until(lambda: not child.is_alive, "the child has ended")
    return child


def test_a_part_that_ends_again_and_again_is_started_with_growing_pauses(tmp_path: Path) -> None:
    said: list[str] = []
    part = SupervisedPart(
        name="the worker",
        start=lambda: ended_child(tmp_path),
        discard=Child.kill,
        child=ended_child(tmp_path),
        say=said.append,
    )
    wait_until(lambda: part.check() and len(said) >= 2, "two restarts", timeout=10)
    assert said[:2] == [
        "the worker ended with exit code 3; it starts again in 0.5 s",
        "the worker ended with exit code 3; it starts again in 1 s",
    ]


def test_a_part_that_does_not_start_is_tried_again_and_one_on_hold_is_not(tmp_path: Path) -> None:
    said: list[str] = []

    def start() -> Child:
        raise ChildEnded("cannot start: there is no module")

    part = SupervisedPart(
        name="the worker", start=start, discard=Child.kill, child=ended_child(tmp_path), say=said.append
    )
    wait_until(lambda: part.check() or len(said) == 2, "the try that fails", timeout=10)
    assert said[1] == "the worker cannot start: there is no module; it starts again in 1 s"
    part.stop_restarting()
    assert not part.check()
    with pytest.raises(ChildEnded):
        part.restart()


def test_changed_new_and_removed_python_files_are_noticed(tmp_path: Path) -> None:
    for name in ("changed.py", "removed.py", "same.py"):
        (tmp_path / name).write_text("")
    (tmp_path / ".hidden").mkdir()
    watcher = FileWatcher(tmp_path)
    assert watcher.find_changes() == []
    os.utime(tmp_path / "changed.py", ns=(1, 1))
    (tmp_path / "removed.py").unlink()
    (tmp_path / "new.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden" / "other.py").write_text("")
    assert wait_until(watcher.find_changes, "the changes") == ["changed.py", "new.py", "removed.py"]


def test_only_whole_new_lines_of_a_log_are_copied(tmp_path: Path) -> None:
    log, output = tmp_path / "log", io.StringIO()
    follower = LogFollower(log, output)
    follower.copy()
    log.write_text("before\n")
    follower.skip()
    log.write_text("before\none\ntw")
    follower.copy()
    log.write_text("before\none\ntwo\n")
    follower.copy()
    assert output.getvalue() == "one\ntwo\n"


def test_the_block_names_agents_addresses_and_the_next_commands() -> None:
    ready = ReadyStack(
        agents=("poet", "weather"),
        modules="weather",
        redis_url="redis://127.0.0.1:40001/0",
        data=Path("/data"),
        worker_pid=7,
        slots=100,
        http_url="http://127.0.0.1:8080",
        flower_url="http://127.0.0.1:5555",
        credentials="agents:secret",
    )
    text = "\n".join(ready.lines(elsewhere=True, reload=True))
    shown = ("redis://127.0.0.1:40001/0", "/data", "http://127.0.0.1:8080", "http://127.0.0.1:5555", "agents:secret")
    for part in ("poet, weather", *shown):
        assert part in text
    assert "export CELERY_AGENTS_REDIS_URL=redis://127.0.0.1:40001/0" in text
    assert "celery-agents submit poet" in text
    assert "export" not in "\n".join(ready.lines(elsewhere=False, reload=False))
