"""The command line as a process, against a real Redis and a real worker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient

from support import fork_server
from support.agents import call, plan
from support.ledger import Ledger
from support.processes import free_port
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess


@dataclass(frozen=True)
class Shell:
    """Runs `celery-agents` with one Redis."""

    url: str
    folder: Path

    def __call__(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "celery_agents", *arguments]
        return fork_server.run(command, cwd=self.folder, env=self.environment(), text=text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin one that can be interrupted, even where the tests themselves run in the background of a script."""
        command = [sys.executable, "-m", "celery_agents", *arguments]
        pipe = subprocess.PIPE
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment(), stdout=pipe, stderr=pipe, text=True
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_AGENTS_")}
        return {**mine, "CELERY_AGENTS_REDIS_URL": self.url, "PYTHONUNBUFFERED": "1"}

    def submitted(self, message: str, *arguments: str) -> str:
        """Id of the session of a new job."""
        done = self("submit", "planned", message, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["session_id"]


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> Shell:
    return Shell(redis_url, tmp_path)


@pytest.fixture
def worker(new_worker: Callable[..., WorkerProcess], ledger: Ledger) -> WorkerProcess:
    return new_worker(env=ledger.env)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_answer_goes_to_standard_output_and_progress_to_standard_error(shell: Shell, worker: WorkerProcess) -> None:
    done = shell("submit", "planned", plan([call("pure", work="a")], answer="the answer"), "--wait")
    assert (done.returncode, done.stdout) == (0, "the answer\n")
    assert re.match(r"session [0-9a-f]{32}  execution [0-9a-f]{32}\n", done.stderr)
    # A text that the model writes stands between the lines, when it is told before its step is over.
    assert re.search(r"(?s)step 1: pure\n.*step 2: answers\n.*completed: 2 steps", done.stderr)


def test_a_message_is_read_from_standard_input(shell: Shell, worker: WorkerProcess) -> None:
    done = shell("submit", "planned", "-", "--wait", text=plan(answer="piped"))
    assert done.stdout == "piped\n"


def test_the_same_key_makes_one_execution_from_wherever_it_is_submitted(shell: Shell, worker: WorkerProcess) -> None:
    first = shell.submitted(plan(), "--idempotency-key", "ticket-42")
    assert shell.submitted(plan(), "-k", "ticket-42") == first
    other = shell("submit", "planned", plan(answer="else"), "-k", "ticket-42")
    assert other.returncode == 2
    assert "idempotency key" in other.stderr
    assert len(lines_of(shell("list", "--json"))) == 1


def test_a_failed_execution_ends_with_1_and_can_be_retried(shell: Shell, worker: WorkerProcess) -> None:
    done = shell("submit", "planned", "no plan at all", "--wait", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["status"] == "failed"
    assert result["errors"]
    session = result["session_id"]
    (listed,) = lines_of(shell("list", "--status", "failed", "--json"))
    assert listed["session_id"] == session
    assert listed["reason"] in result["errors"], "a listing says why it failed"

    named = shell("retry", "--failed", "--since", "1h", "--agent", "planned", "--dry-run")
    assert session in named.stdout
    assert "1 failed execution to retry" in named.stdout
    assert "0 failed executions" in shell("retry", "--failed", "--agent", "other").stdout

    assert shell("send", session, plan(answer="now it works"), "--wait").stdout == "now it works\n"
    refused = shell("retry", session)
    assert refused.returncode == 1
    assert "its execution is completed; only failed and stopped ones can be retried" in refused.stderr


ACTING = "\x1b[31mred\x9b\u202eback\nwarn  forged\r\nok    forged\u2028"
ACTING_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


def test_what_a_model_wrote_steers_no_terminal_and_looks_like_no_line_of_ours(
    shell: Shell, worker: WorkerProcess
) -> None:
    session = shell.submitted(plan([call(f"bad{ACTING}", work=ACTING)], answer=ACTING), "--wait")
    looks = [
        ["show", session], ["show", session, "--json"], ["watch", session], ["watch", session, "--json"],
        ["tree", session], ["trace", session], ["trace", session, "--no-data"], ["snapshot", session], ["list"],
        ["requests"], ["doctor"], ["workers"], ["health"],
    ]  # fmt: skip
    for look in looks:
        done = shell(*look)
        for line in (done.stdout + done.stderr).split("\n"):
            assert not ACTING_CHARACTERS.search(line), look
            assert not line.startswith(("warn  forged", "ok    forged")), look
    assert json.loads(shell("trace", session).stdout)["payload"]["output"] == ACTING
    restored = shell("restore", "-", "--session", "restored", text=shell("snapshot", session).stdout)
    assert restored.returncode == 0, restored.stderr
    client = AgentClient(shell.url)
    original, copy = (client.show(each).state.store.section().messages for each in (session, "restored"))
    assert [each.content for each in original] == [each.content for each in copy]
    assert ACTING in [each.content for each in copy]


def test_in_a_terminal_an_answer_stands_apart_from_our_own_lines(shell: Shell, worker: WorkerProcess) -> None:
    command = [sys.executable, "-m", "celery_agents", "submit", "planned", plan(answer=ACTING), "--wait"]
    terminal, inner = os.openpty()
    process = subprocess.Popen(command, cwd=shell.folder, env=shell.environment(), stdout=inner, stderr=inner)
    os.close(inner)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while piece := os.read(terminal, 65_536):
            shown += piece
    os.close(terminal)
    assert process.wait(timeout=30) == 0
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    assert "    warn  forged" in lines
    # The progress line is ours, and moves the cursor.
    assert [line for line in lines if re.match("warn  forged|ok    forged", line)] == []
    assert [line for line in lines if "\x1b[31m" in line or "\x9b" in line or "\u202e" in line] == []


def test_a_retry_can_be_waited_for(shell: Shell, worker: WorkerProcess) -> None:
    session = json.loads(shell("submit", "planned", "no plan", "--wait", "--json").stdout)["session_id"]
    done = shell("retry", session, "--wait", "--timeout", "30s")
    assert done.returncode == 1
    assert "step 1 is tried again" in done.stderr
    assert "failed: " in done.stderr.splitlines()[-1]


def test_events_can_be_resumed_after_an_id(shell: Shell, worker: WorkerProcess) -> None:
    session = shell.submitted(plan([call("pure", work="a")]))
    *events, result = lines_of(shell("watch", session, "--json"))
    assert result["status"] == "completed"
    assert [event["type"] for event in events][-1] == "execution_completed"
    *rest, _ = lines_of(shell("watch", session, "--json", "--from", events[1]["id"]))
    assert rest == events[2:]


def test_a_stop_ends_a_running_job_within_a_second(shell: Shell, worker: WorkerProcess, ledger: Ledger) -> None:
    session = shell.submitted(plan([call("keyed_async", work="a", gate="hold")], [call("pure", work="b")]))
    wait_until(lambda: ledger.deliveries().total() >= 2, "the tool runs", timeout=10)
    done = shell("stop", session, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "stopped"
    assert shell("stop", session).stdout == "nothing was running\n"
    assert shell("watch", session).returncode == 1
    ledger.open("hold")


def test_waiting_can_be_left_and_taken_up_again(shell: Shell, worker: WorkerProcess, ledger: Ledger) -> None:
    message = plan([call("keyed", work="a", gate="hold")], answer="at last")
    slow = shell("submit", "planned", message, "--wait", "--timeout", "1s", "-k", "slow")
    assert slow.returncode == 4
    assert "has not ended" in slow.stderr
    session = re.findall(r"celery-agents watch (\w+)", slow.stderr)[0]

    waiting = shell.start("watch", session)
    assert waiting.stdout is not None
    waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert "the job goes on" in errors
    assert "Traceback" not in errors

    ledger.open("hold")
    assert "at last" in shell("watch", session).stdout


def test_sessions_are_listed_in_pages_and_by_what_they_are(shell: Shell, worker: WorkerProcess) -> None:
    made = [shell.submitted(plan(answer=str(number)), "--wait") for number in range(3)]
    page = lines_of(shell("list", "--limit", "2", "--json"))
    assert [line["session_id"] for line in page] == made[:0:-1]
    (last,) = lines_of(shell("list", "--limit", "2", "--json", "--cursor", page[-1]["cursor"]))
    assert last["session_id"] == made[0]
    assert (last["steps"], last["tokens"], last["reason"], "cursor" in last) == (1, 0, "", False)
    assert last["first_message"].startswith("{")
    assert lines_of(shell("list", "--json", "--status", "waiting")) == []
    assert lines_of(shell("list", "--json", "--agent", "other")) == []
    assert len(lines_of(shell("list", "--json", "--since", "1h", "--status", "completed"))) == 3
    assert re.search(rf"SESSION +AGENT +STATUS.*\n{made[2]} +planned +completed", shell("list").stdout)


def test_sessions_are_labelled_and_found_by_their_labels(shell: Shell, worker: WorkerProcess) -> None:
    session = shell.submitted(plan(answer="said"), "--wait", "--label", "customer=42", "--label", "tier=gold")
    shell.submitted(plan(answer="said"), "--wait", "--label", "customer=43")
    found = lines_of(shell("list", "--json", "--label", "customer=42", "--text", "SAID", "--status", "completed"))
    assert [line["session_id"] for line in found] == [session]
    assert found[0]["labels"] == {"customer": "42", "tier": "gold"}
    assert shell("label", session, "tier=", "team=blue").stdout.split() == ["customer=42", "team=blue"]
    assert "labels customer=42, team=blue" in shell("show", session).stdout
    for wrong in (("label", session, "tier"), ("label", session, "a=1", "a=2"), ("list", "--label", "x")):
        refused = shell(*wrong)
        assert refused.returncode == 2
        assert "key=value" in refused.stderr
    assert shell("list", "--json", "--label", "tier=gold").stdout == ""
    assert "name at least one" in shell("erase").stderr
    assert shell("erase", "--label", "customer=42").stdout.strip() == "erased 1 session, 0 dead steps"
    assert lines_of(shell("erase", "--label", "customer=42", "--json")) == [
        {"sessions": [], "dead_entries": 0, "left": {}}
    ]


def test_a_session_is_shown_for_people_and_for_programs(shell: Shell, worker: WorkerProcess) -> None:
    session = shell.submitted(plan([call("pure", work="a"), call("failing", text="broken")], answer="said"), "--wait")
    shown = shell("show", session).stdout
    assert re.search(r'step 1: .*\n +call pure\(\{"work":"a"\}\): ok', shown)
    assert re.search(r'call failing\(\{"text":"broken"\}\): error.*broken', shown)
    assert "assistant: said" in shown
    assert shell("show", f"{session[:12]}…").stdout.splitlines()[2:] == shown.splitlines()[2:]  # not the ages
    only = shell("show", session, "--step", "2").stdout
    assert "step 2:" in only
    assert "step 1:" not in only
    assert shell("show", session, "--step", "9").returncode == 2
    (value,) = lines_of(shell("show", session, "--json"))
    assert value["status"] == "completed"
    assert value["state"]["execution"]["status"] == "completed"


def test_limits_given_at_submit_hold(shell: Shell, worker: WorkerProcess) -> None:
    message = plan([call("pure", work="a")], [call("pure", work="b")], [call("pure", work="c")])
    done = shell("submit", "planned", message, "--wait", "--json", "--max-steps", "2")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["status"], result["step_count"]) == ("stopped", 2)


def test_what_is_not_there_is_a_sentence_and_2(shell: Shell, worker: WorkerProcess) -> None:
    for arguments in (
        ["show", "nosuch"],
        ["watch", "nosuch"],
        ["send", "nosuch", "x"],
        ["stop", "nosuch"],
        ["retry", "nosuch"],
    ):
        done = shell(*arguments)
        assert done.returncode == 2, arguments
        assert "There is no session 'nosuch'" in done.stderr


def test_a_job_for_an_agent_that_nobody_has_registered_waits_and_says_so(shell: Shell, worker: WorkerProcess) -> None:
    unknown = shell("submit", "nobody", "hello")
    assert unknown.returncode == 0
    assert "no worker has registered agent 'nobody' (registered: planned)" in unknown.stderr


def test_without_redis_it_is_a_sentence_and_3(tmp_path: Path) -> None:
    shell = Shell(f"redis://user:geheim@127.0.0.1:{free_port()}/0", tmp_path)
    for arguments in (["list"], ["show", "x"], ["submit", "a", "b"], ["retry", "--failed"], ["watch", "x"]):
        done = shell(*arguments)
        assert done.returncode == 3, arguments
        assert len(done.stderr.splitlines()) == 1
        assert "geheim" not in done.stderr


def test_output_that_nobody_reads_is_no_error(shell: Shell, worker: WorkerProcess) -> None:
    shell.submitted(plan(), "--wait")
    listing = shell.start("list", "--json")
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.close()
    assert listing.stderr.read() == ""
    listing.wait(timeout=20)


def test_everything_on_this_machine_starts_with_one_command(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "my_agents.py").write_text(
        "from celery_agents import Agent\n"
        "echo = Agent('echo', driver=lambda state: 'you said ' + state.messages[-1].content)\n"
    )
    started = shell.start(
        "up", "--agents", "my_agents", "--port", str(free_port()), "--no-flower", "--no-http", "--data-dir", "data"
    )
    assert started.stdout is not None
    url = next(found[0] for line in started.stdout if (found := re.findall(r"redis://\S+", line)))
    try:
        other = Shell(url, tmp_path)
        wait_until(
            lambda: other("submit", "echo", "hello", "--wait").stdout == "you said hello\n", "an answer", timeout=40
        )
    finally:
        started.send_signal(signal.SIGINT)
        output, errors = started.communicate(timeout=40)
    assert started.returncode == 0, output + errors
    assert "Traceback" not in output + errors
    assert (tmp_path / "data" / "appendonlydir").exists() or (tmp_path / "data" / "appendonly.aof").exists()


def test_a_worker_without_usable_agents_is_a_sentence_and_2(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("")
    (tmp_path / "keyless.py").write_text(
        "from celery_agents import Agent\nasker = Agent('asker', model='openai:gpt-test')\n"
    )
    for arguments, said in (
        ([], "--agents"),
        (["--agents", "no.such"], "cannot be imported"),
        (["--agents", "none"], "defines no Agent"),
        (["--agents", "keyless"], "OPENAI_API_KEY"),
        (["--agents", "none", "--name", "a b"], "name"),
    ):
        done = shell("worker", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert said in done.stderr


def test_doctor_finds_nothing_wrong_where_nothing_is(shell: Shell, worker: WorkerProcess) -> None:
    done = shell("doctor")
    assert done.returncode == 0, done.stdout
    assert re.search(r"ok +agent planned", done.stdout)
    assert all({"name", "level", "what", "advice"} <= set(line) for line in lines_of(shell("doctor", "--json")))


def test_doctor_says_what_is_wrong_and_what_to_do(new_redis: Callable[..., RedisServer], tmp_path: Path) -> None:
    server = new_redis(config={"maxmemory-policy": "allkeys-lru"})
    done = Shell(server.url(), tmp_path)("doctor")
    assert done.returncode == 1
    assert re.search(r"fail +eviction +allkeys-lru\n.*noeviction", done.stdout), done.stdout


def test_doctor_says_that_a_login_is_refused(redis_url: str, tmp_path: Path) -> None:
    done = Shell(redis_url.replace("redis://", "redis://nobody:secret@"), tmp_path)("doctor", "--json")
    (finding,) = lines_of(done)
    assert done.returncode == 3
    assert finding["what"].startswith("Redis refuses this user: ")
    assert finding["advice"].startswith("correct user and password")
