"""Standard streams that are full or closed end a command with a sentence."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = f"{sys.executable} -m celery_agents"


def run(line: str) -> tuple[int, str]:
    done = subprocess.run(["/bin/sh", "-c", f"{COMMAND} {line}"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["--version", "health --json --redis-url redis://127.0.0.1:1 --alive", "--help"])
def test_output_that_has_no_room_is_a_sentence(command: str) -> None:
    code, said = run(f"{command} > /dev/full")
    assert (code, said) == (1, "celery-agents: The output cannot be written whole: No space left on device.\n")


def test_standard_input_that_is_closed_is_a_sentence() -> None:
    code, said = run("submit echo - <&-")
    assert (code, "standard input is closed" in said, "Traceback" in said) == (2, True, False), said


def test_output_that_is_closed_changes_no_exit_code() -> None:
    assert run("--version >&-") == (0, "")


def test_a_snapshot_from_standard_input_that_is_closed_is_a_sentence() -> None:
    code, said = run("restore - <&-")
    assert (code, "Traceback" in said) == (2, False), said


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_connection_gets_the_number_of_a_stream_that_is_closed(closed: str) -> None:
    code = (
        "import sys; from celery_agents.tasks.cli import program; program._open_closed_streams();"
        "sys.exit(int(open('/dev/zero').fileno() < 3 or sys.stdin.isatty() or sys.stdout.isatty()))"
    )
    done = subprocess.run(["/bin/sh", "-c", f'{sys.executable} -c "{code}" {closed}'], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("value", "is_colored"), [("", True), ("1", False)])
def test_a_terminal_gets_colors_unless_its_user_wants_none(value: str, is_colored: bool) -> None:
    terminal, ours = pty.openpty()
    line = [sys.executable, "-m", "celery_agents", "doctor", "--redis-url", "redis://127.0.0.1:1"]
    subprocess.run(line, stdout=ours, stderr=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": value}, check=False)
    os.close(ours)
    said = os.read(terminal, 65_536)
    os.close(terminal)
    assert (b"does not answer" in said, b"\x1b[31m" in said) == (True, is_colored)


@pytest.mark.parametrize("command", ["doctor", "new my_shop", "worker --agents celery_agents.demo.agents"])
def test_a_folder_that_was_removed_is_a_sentence(command: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    line = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone && {COMMAND} {command}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    said = "celery-agents: The current folder does not exist any more; change to another one.\n"
    assert (done.returncode, done.stderr) == (2, said)
