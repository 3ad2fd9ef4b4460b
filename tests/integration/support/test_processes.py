from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import TESTS, Process, free_port, is_gone, running
from support.wait import wait_until

SLEEPER = "print('here', flush=True); import time; time.sleep(600)"


def python(name: str, code: str, directory: Path, **env: str | None) -> Process:
    return Process(name, [sys.executable, "-c", code], directory, env)


def test_a_port_is_given_once() -> None:
    mine = [free_port() for _ in range(400)]
    assert len(set(mine)) == len(mine)
    code = "from support.processes import free_port; print(*(free_port() for _ in range(400)))"
    other = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=True)
    theirs = {int(port) for port in other.stdout.split()}
    assert len(theirs) == 400
    assert not theirs & set(mine)


def test_a_process_is_its_own_group_with_its_own_log(tmp_path: Path) -> None:
    with python("sleeper", SLEEPER, tmp_path) as process:
        process.wait_for_text("here")
        assert os.getpgid(process.pid) == process.pid
        assert process in running()
    assert process.exit_code == -signal.SIGTERM
    assert process not in running()
    assert (tmp_path / "sleeper.log").read_text() == "here\n"


def test_ending_a_process_ends_what_it_started(tmp_path: Path) -> None:
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]).pid, flush=True); "
    with python("parent", code + SLEEPER, tmp_path) as process:
        child = int(
            wait_until(lambda: [w for w in process.text().split() if w.isdigit()], "the child's pid is known")[0]
        )
        assert not is_gone(child)
    wait_until(lambda: is_gone(child), "the child has ended too")


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
    process = python("deaf", code, tmp_path)
    process.start()
    process.wait_for_text("here")
    process.end(patience=0.1)
    assert process.exit_code == -signal.SIGKILL


def test_a_paused_process_can_be_ended(tmp_path: Path) -> None:
    with python("paused", SLEEPER, tmp_path) as process:
        process.wait_for_text("here")
        process.pause()
    assert process.exit_code == -signal.SIGTERM


def test_waiting_for_the_text_of_a_process_that_ended_says_so(tmp_path: Path) -> None:
    with (
        python("short", "import sys; print('bad luck'); sys.exit(3)", tmp_path) as process,
        pytest.raises(AssertionError, match=r"short ended with 3 before 'ready'\n(.|\n)*bad luck"),
    ):
        process.wait_for_text("ready")


def test_a_name_can_be_taken_out_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "1")
    code = "import os; print(os.environ.get('SECRET_OF_MINE'), os.environ.get('GIVEN'))"
    with python("env", code, tmp_path, SECRET_OF_MINE=None, GIVEN="2") as process:
        assert process.wait(10) == 0
    assert process.text() == "None 2\n"


def test_nothing_is_left_when_the_tests_themselves_are_killed(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from support.processes import Process
process = Process("orphan", [sys.executable, "-c", {SLEEPER!r}], Path({str(tmp_path)!r}))
process.start()
process.wait_for_text("here")
print(process.pid, flush=True)
time.sleep(600)
"""
    tests = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    assert tests.stdout is not None
    orphan = int(tests.stdout.readline())
    assert not is_gone(orphan)
    tests.kill()
    tests.communicate()
    wait_until(lambda: is_gone(orphan), "the process has ended with the tests that started it")


def test_a_free_port_is_below_the_range_of_outgoing_connections() -> None:
    assert 20_000 <= free_port() < 32_000
