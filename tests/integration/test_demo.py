"""The demo as somebody runs it: one command, a real Redis, a real worker, an answer, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.provider import Provider, calls, tool_call
from support.wait import wait_until

QUESTION = "How long does charging take?"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir()
    (made / "guide.md").write_text(
        "# Robot\n\nWelcome.\n\n## Charging\n\nCharging takes 90 minutes. The dock is green.\n"
    )
    (made / "other.md").write_text("Soup is made of onions.\n")
    return made


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_AGENTS_")}
    return {**mine, "NO_PROXY": "127.0.0.1", "PYTHONUNBUFFERED": "1", **(given or {})}


def demo(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "celery_agents", "demo", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(env), capture_output=True, text=True, timeout=90, check=False
    )


def processes_of(output: str) -> list[int]:
    """Process ids that the demo's first lines name."""
    line = next(line for line in output.splitlines() if line.startswith("Redis "))
    return [int(number) for number in re.findall(r"workers? (\d+)(?: and (\d+))?", line)[0] if number]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_prints_the_steps_and_a_correct_answer_and_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = demo("--path", str(folder), QUESTION, env={"TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 1: list_files, search_files", done.stdout)
    assert re.search(r"step 2: read_file", done.stdout)
    assert re.search(r"completed: 3 steps", done.stdout)
    assert "1. “Charging takes 90 minutes.”\n   guide.md:7  (Robot › Charging)" in done.stdout
    assert "\x1b" not in done.stdout, "plain lines where there is no terminal"
    assert done.stderr == ""
    assert all(gone(pid) for pid in processes_of(done.stdout))
    assert list(temporary.iterdir()) == []


def test_without_arguments_it_answers_from_this_projects_documentation() -> None:
    done = demo()
    assert done.returncode == 0, done.stderr
    first = re.search(r"1\. “(.*)”\n\s+(\S+\.md):(\d+)", done.stdout)
    assert first
    assert "killed worker" in first[1]


def test_it_works_from_a_folder_with_modules_of_the_same_names(folder: Path, tmp_path: Path) -> None:
    for name in ("tasks.py", "config.py", "worker.py", "demo.py", "redis.py", "secrets.py", "celery.py"):
        (tmp_path / name).write_text("raise RuntimeError('the wrong module')\n")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("celery-agents")), "demo", "--path", str(folder), QUESTION],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "90 minutes" in done.stdout


def test_it_says_when_the_files_do_not_tell(folder: Path) -> None:
    done = demo("--path", str(folder), "What is the capital of France?")
    assert done.returncode == 0
    assert "I found nothing in the 2 files" in done.stdout


def test_a_killed_worker_is_replaced_and_each_effect_happens_once(folder: Path) -> None:
    done = demo("--crash", "--path", str(folder), QUESTION)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"kill -9 worker [12] \(pid \d+\) in step 2", done.stdout)
    assert re.search(r"step 2: carried on by", done.stdout)
    assert re.search(r"steps committed +3\n +driver calls +3 .*\n +tool effects +1 +delivered 2 times", done.stdout)
    seconds = re.search(r"recovered after +([\d.]+) s", done.stdout)
    assert seconds
    assert float(seconds[1]) <= 10
    assert "90 minutes" in done.stdout
    assert all(gone(pid) for pid in processes_of(done.stdout))


def test_what_is_kept_can_be_looked_at_and_asked_again(folder: Path, tmp_path: Path) -> None:
    done = demo("--path", str(folder), "--keep", "--data-dir", str(tmp_path / "data"), QUESTION)
    pids: list[int] = []
    try:
        assert done.returncode == 0, done.stderr
        pids = [int(pid) for line in re.findall(r"End it with: (.*)", done.stdout) for pid in re.findall(r"\d+", line)]
        url = re.findall(r"CELERY_AGENTS_REDIS_URL=(\S+)", done.stdout)[0]
        session = re.findall(r"celery-agents show (\w+)", done.stdout)[0]
        assert len(pids) == 2
        again = [sys.executable, "-m", "celery_agents", "send", session, "What is soup made of?", "--wait"]
        answer = subprocess.run(
            again, env=environment({"CELERY_AGENTS_REDIS_URL": url}), capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        assert "onions" in answer.stdout
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    for pid in pids:
        wait_until(lambda pid=pid: gone(pid), f"process {pid} has ended", timeout=20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_nothing_is_left_when_it_is_ended_in_the_middle(folder: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "celery_agents", "demo", "--path", str(folder), QUESTION]
    started = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    seen = ""
    while "Redis " not in seen:
        seen += started.stdout.readline()
    started.send_signal(number)
    _, errors = started.communicate(timeout=30)
    assert "Traceback" not in errors
    for pid in processes_of(seen):
        wait_until(lambda pid=pid: gone(pid), f"worker {pid} has ended", timeout=20)


def test_with_a_model_the_same_tools_are_used(folder: Path, provider: Provider) -> None:
    provider.plan(
        calls(tool_call("list_files", {}), tool_call("search_files", {"query": "charging"})),
        calls(tool_call("read_file", {"file": "guide.md"}), tool_call("read_file", {"file": "../secret"})),
        "It takes “90 minutes” (guide.md:7).",
    )
    secret = "sk-demo-0123456789abcdef"
    done = demo(
        "--path", str(folder), "--model", "openai:gpt-test", "--base-url", provider.base_url, QUESTION,
        env={"OPENAI_API_KEY": secret},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "It takes “90 minutes” (guide.md:7)." in done.stdout
    assert "read_file, read_file (error)" in done.stdout
    last = json.dumps(provider.ledger()[-1]["request"], ensure_ascii=False)
    assert "7: Charging takes 90 minutes." in last
    assert "outside the folder" in last
    assert secret not in done.stdout + done.stderr


def test_a_model_that_cannot_be_asked_is_said_at_once(folder: Path) -> None:
    began = time.monotonic()
    done = demo("--path", str(folder), "--model", "openai:gpt-test", QUESTION, env={"OPENAI_API_KEY": ""})
    assert done.returncode == 2
    assert "OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 20
