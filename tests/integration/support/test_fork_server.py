"""A fork finds what a Python that was started from nothing finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import fork_server
from support.fork_server import ForkServer
from support.wait import wait_until

PROBE = """
import contextlib, faulthandler, json, os, signal, sys
def leads_to(descriptor):
    with contextlib.suppress(FileNotFoundError):  # that of the listing is closed again
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "environ": dict(os.environ),
    "input": sys.stdin.read(), "leads its session": os.getsid(0) == os.getpid(), "faults": faulthandler.is_enabled(),
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)],
    # A library that a fork has loaded already may keep its own file open.
    "descriptors": len([each for each in os.listdir("/proc/self/fd") if ".so" not in leads_to(each)]), "main": __name__, "file": __file__,
    "streams": [[each.encoding, each.errors, each.line_buffering, each.write_through, each.isatty()]
                for each in (sys.stdin, sys.stdout, sys.stderr)],
    "tests": [each for each in sys.modules if each.startswith(("support", "pytest", "_pytest"))],
}))
print("told", file=sys.stderr)
if "sleep" in sys.argv:
    sys.stdout.flush()
    import time; time.sleep(60)
sys.exit(int(sys.argv[1]))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.end()


def ended(process: Any, folder: Path) -> tuple[int, dict[str, Any], str]:
    code = process.wait(20)
    return code, json.loads((folder / "out").read_text()), (folder / "errors").read_text()


@pytest.mark.parametrize("safe", [[], ["-P"]])
@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONFAULTHANDLER": "1", "CELERY_AGENTS_X": "y"}])
def test_a_fork_finds_what_a_new_process_finds(
    server: ForkServer, tmp_path: Path, safe: list[str], env: Mapping[str, str]
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "given").write_text("some input")
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    argv = [sys.executable, *safe, "-m", "probe", "3", "word"]
    found: list[Any] = []
    for start in (subprocess.Popen, server.start):
        with (
            (tmp_path / "given").open("rb") as given,
            (tmp_path / "out").open("wb") as out,
            (tmp_path / "errors").open("wb") as errors,
        ):
            more: dict[str, Any] = {}
            if start is subprocess.Popen:
                # In the background of a shell SIGINT is ignored; forks have it as in its foreground.
                more = {"start_new_session": True, "preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL)}
            process = start(
                argv, cwd=tmp_path, env={**mine, "PYTHONPATH": f"{tmp_path}:/nowhere", **env},
                stdin=given.fileno(), stdout=out.fileno(), stderr=errors.fileno(), **more,
            )  # fmt: skip
        found.append(ended(process, tmp_path))
    (code, new, told), (forked_code, forked, forked_told) = found
    assert {name: value for name, value in forked.items() if value != new[name]} == {}
    assert (forked_code, forked_told) == (code, told) == (3, "told\n")
    assert forked["tests"] == []


def test_a_fork_that_is_killed_tells_its_signal_and_others_run_on(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    argv = [sys.executable, "-m", "probe", "0", "sleep"]
    processes = []
    for number in range(2):
        with open(os.devnull, "rb") as nothing, (tmp_path / f"out{number}").open("wb") as out:
            processes.append(
                server.start(
                    argv, cwd=tmp_path, env=os.environ, stdin=nothing.fileno(), stdout=out.fileno(), stderr=out.fileno()
                )
            )
    killed, other = processes
    wait_until(lambda: "told" in (tmp_path / "out0").read_text(), "it runs")
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.01)
    os.killpg(other.pid, signal.SIGINT)
    assert other.wait(10) == -signal.SIGINT


def test_only_our_command_with_our_interpreter_and_locale_is_forked() -> None:
    ours = [sys.executable, "-m", "celery_agents", "list"]
    assert fork_server.can_fork(ours, os.environ)
    assert fork_server.can_fork([ours[0], "-P", *ours[1:]], {**os.environ, "CELERY_AGENTS_POOL": "solo"})
    assert not fork_server.can_fork(["python3", *ours[1:]], os.environ)
    assert not fork_server.can_fork([sys.executable, "-m", "support.ledger"], os.environ)
    for name in ("CELERY_BROKER_URL", "PYTHONHASHSEED", "LC_ALL", "DJANGO_SETTINGS_MODULE", "C_FORCE_ROOT"):
        assert not fork_server.can_fork(ours, {**os.environ, name: "x"}), name


def test_what_a_command_says_and_reads_and_its_exit_code_are_told() -> None:
    done = fork_server.run([sys.executable, "-m", "celery_agents", "no-such-command"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such command 'no-such-command'" in done.stderr
    done = fork_server.run([sys.executable, "-c", "print(input())"], text="not ours\n")
    assert (done.returncode, done.stdout) == (0, "not ours\n")
