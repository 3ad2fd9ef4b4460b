"""The demo as somebody runs it: one command, real processes, what the ledger counts, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support import fork_server
from support.hostile import hostile_environment, write_files_of_another_service
from support.processes import is_gone
from support.provider import Provider, calls, tool_call
from support.redis_server import RedisServer
from support.wait import wait_until

pytestmark = pytest.mark.slow


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_AGENTS_")}
    return {**mine, "NO_PROXY": "127.0.0.1", "PYTHONUNBUFFERED": "1", **(given or {})}


def demo(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("celery-agents")), "demo", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(env), capture_output=True, text=True, timeout=110, check=False
    )


def ledger_lines(data: Path, side: str, kind: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (data / "ledger.jsonl").read_text().splitlines()]
    return [line for line in lines if (line["side"], line["kind"]) == (side, kind)]


def test_one_refund_and_each_answer_paid_once_beside_a_plain_task_that_refunds_twice(
    tmp_path: Path, new_redis: Callable[..., RedisServer]
) -> None:
    other = new_redis()
    write_files_of_another_service(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    began, data = time.monotonic(), tmp_path / "data"
    hostile = {**hostile_environment(other.url()), "TMPDIR": str(temporary)}
    done = demo("--data-dir", str(data), cwd=tmp_path, env=hostile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < 60

    agents = ledger_lines(data, "celery-agents", "refund")
    assert len(agents) == 2, "the first worker's call, and the repetition under the same key"
    assert len({line["key"] for line in agents}) == 1
    assert len({line["pid"] for line in agents}) == 2
    assert len(ledger_lines(data, "celery-agents", "answer")) == 3
    plain = ledger_lines(data, "plain Celery", "refund")
    assert len({line["key"] for line in plain}) == len(plain) == 2
    assert len(ledger_lines(data, "plain Celery", "answer")) == 5

    for said in (
        r"kill -9 worker [12] \(process \d+\)",
        r"waits until the lease of worker [12] has run out \(6 s\)",
        r"after the visibility timeout \(4 s here, by default 1 h\)",
        r"calls refund again under the same key: the ledger knows it and pays nothing",
        r"refunds in the ledger +1  \(24.00 paid out\) +2  \(48.00 paid out\)",
        r"model answers paid +3 +5",
        r"celery-agents new my_shop",
        r"I refunded 24.00 for order 17\.",
    ):
        assert re.search(said, done.stdout), (said, done.stdout)
    assert "\x1b" not in done.stdout, "plain lines where there is no terminal"
    assert done.stderr == ""
    with other.client() as client:
        assert client.dbsize() == 0


def test_what_is_kept_can_be_looked_at_and_asked_again(tmp_path: Path) -> None:
    done = demo("--keep", "--data-dir", str(tmp_path / "data"))
    pids: list[int] = []
    try:
        assert done.returncode == 0, done.stderr
        pids = [int(pid) for pid in re.findall(r"\d+", re.findall(r"End it with: kill (.*)", done.stdout)[0])]
        url = re.findall(r"CELERY_AGENTS_REDIS_URL=(\S+)", done.stdout)[0]
        session = re.findall(r"celery-agents show (\w+)", done.stdout)[0]
        assert re.search(r"Flower: http://127.0.0.1:\d+", done.stdout)
        plain = {int(str(line["pid"])) for line in ledger_lines(tmp_path / "data", "plain Celery", "answer")}
        assert plain
        assert all(map(is_gone, plain)), "nothing asks the plain workers again"
        again = [sys.executable, "-P", "-m", "celery_agents", "send", session, "Order 18 is broken, too", "--wait"]
        answer = fork_server.run(again, env=environment({"CELERY_AGENTS_REDIS_URL": url}))
        assert answer.returncode == 0, answer.stderr
        assert "39.00 for order 18" in answer.stdout
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} has ended", timeout=20)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)], ids=lambda number: number.name
)
def test_nothing_is_left_when_it_is_ended_in_the_middle(number: signal.Signals, tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-P", "-m", "celery_agents", "demo", "--data-dir", str(data)]
    started = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    seen = ""
    while "calls refund" not in seen:
        seen += started.stdout.readline()
    pids = {
        int(str(line["pid"]))
        for side in ("celery-agents", "plain Celery")
        for line in ledger_lines(data, side, "answer")
    }
    started.send_signal(number)
    _, errors = started.communicate(timeout=30)
    assert "Traceback" not in errors
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid), f"worker {pid} has ended", timeout=20)


@pytest.mark.long
def test_with_a_model_both_sides_ask_it_and_use_the_same_tools(provider: Provider, tmp_path: Path) -> None:
    provider.plan(
        calls(tool_call("find_order", {"number": "17"})),
        calls(tool_call("refund", {"number": "17", "cents": 2400})),
        "I refunded 24.00 for your teapot.",
    )
    secret = "sk-demo-0123456789abcdef"
    done = demo(
        "--model", "openai:gpt-test", "--base-url", provider.base_url, "--data-dir", str(tmp_path / "data"),
        env={"OPENAI_API_KEY": secret},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"refunds in the ledger +1 .* +2 ", done.stdout)
    assert re.search(r"model answers paid +3 +5", done.stdout)
    assert len(provider.paid()) == 8
    assert secret not in done.stdout + done.stderr


def test_a_model_that_cannot_be_asked_is_said_at_once() -> None:
    began = time.monotonic()
    done = demo("--model", "openai:gpt-test", env={"OPENAI_API_KEY": ""})
    assert done.returncode == 2
    assert "OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 20
