"""A password in `--redis-url` does not stay among the arguments of the process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from celery_agents.tasks.cli.hidden_arguments import has_password, take_redis_url

from support.processes import Process
from support.wait import wait_until

URL = "redis://:not-a-real-password@127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("arguments", "kept", "url"),
    [
        (["-m", "celery_agents", "list", "--redis-url", URL], ["-m", "celery_agents", "list"], URL),
        (["list", f"--redis-url={URL}", "--json"], ["list", "--json"], URL),
        (["list", "--redis-url", "redis://a/0", "--redis-url", URL], ["list"], URL),
        (["list", "--", "--redis-url", URL], ["list", "--", "--redis-url", URL], None),
        (["list"], ["list"], None),
    ],
)
def test_the_option_is_taken_out(arguments: list[str], kept: list[str], url: str | None) -> None:
    assert take_redis_url(arguments) == (kept, url)


def test_only_a_password_makes_the_difference() -> None:
    assert has_password(URL)
    assert has_password("redis://user:pw@host/0")
    assert not has_password("redis://127.0.0.1:6379/0")
    assert not has_password("redis://user@127.0.0.1:6379/0")


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the list of processes is read from /proc")
@pytest.mark.parametrize(
    "option",
    [
        pytest.param(["--redis-url", URL], id="two words", marks=pytest.mark.long),
        pytest.param([f"--redis-url={URL}"], id="one word"),
    ],
)
def test_the_list_of_processes_shows_no_password(tmp_path: Path, option: list[str]) -> None:
    # It waits for a Redis that is not there, and for nobody else.
    argv = [sys.executable, "-m", "celery_agents", "worker", "--agents", "support.agents", *option]
    with Process("worker", argv, tmp_path, {"PYTHONPATH": str(Path(__file__).parents[2])}) as worker:
        arguments = Path(f"/proc/{worker.pid}/cmdline")

        def has_begun_again() -> bool:
            return b"--redis-url" not in arguments.read_bytes() and b"celery_agents" in arguments.read_bytes()

        wait_until(has_begun_again, "the command has begun again without the option", timeout=20, details=worker.tail)
        worker.wait_for_text("127.0.0.1:1", timeout=30)
        assert b"not-a-real" not in arguments.read_bytes()
        assert "not-a-real" not in worker.text()
