"""Every code block of the README and of the pages that readers copy from is run, and prints what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from support import fork_server
from support.documents import ROOT, read_document
from support.redis_keys import count_entries

PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "quickstart",
            "agents",
            "capabilities",
            "runs",
            "smart",
            "children",
            "people",
            "messages",
            "mcp",
            "services",
            "sessions",
            "operating",
            "coming-from",
        )
    ),
    "docs/replace-your-task.md",
)


def run(folder: Path, redis_url: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command in a folder, as a reader would type it."""
    environment = {**os.environ, "CELERY_AGENTS_REDIS_URL": redis_url, "PYTHONPATH": str(folder), "COLUMNS": "120"}
    done = fork_server.run(command, cwd=folder, env=environment)
    assert not check or done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def agents_command(line: str) -> list[str]:
    """`celery-agents …` of a page, for this environment."""
    words = shlex.split(line)
    assert words[0] == "celery-agents"
    return [sys.executable, "-m", "celery_agents", *words[1:]]


def test_the_readme_s_dozen_lines_run_and_print_what_it_says(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("README.md")
    page.write(tmp_path)
    new_worker(agents="helpdesk", env={"PYTHONPATH": str(tmp_path)})
    (submit,) = [line for line in page.commands if line.startswith("celery-agents submit")]
    assert run(tmp_path, redis_url, *agents_command(submit)).stdout.strip() == page.outputs[-1].strip()
    printed = run(tmp_path, redis_url, sys.executable, "service.py").stdout.splitlines()
    assert printed[-1] == page.outputs[-1].strip()
    assert "step_committed 1" in printed
    assert run(tmp_path, redis_url, sys.executable, "service.py").stdout.splitlines()[-1] == printed[-1]
    with redis.Redis.from_url(redis_url) as client:
        assert count_entries(client, "sessions") == [2], "the idempotency key made one session of two runs"


def test_the_quick_start_s_agent_answers(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("docs/quickstart.md")
    page.write(tmp_path)
    new_worker(agents="weather", env={"PYTHONPATH": str(tmp_path)})
    (submit,) = [line for line in page.commands if line.startswith("celery-agents submit")]
    assert run(tmp_path, redis_url, *agents_command(submit)).stdout.strip() == page.outputs[0].strip()
    listed = run(tmp_path, redis_url, *agents_command("celery-agents list --json")).stdout
    assert listed.count('"completed"') == 1


def test_the_agents_page_s_tools_and_guards_work(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    read_document("docs/agents.md").write(tmp_path)
    for name in ("tools_example", "asking_tools", "guarded"):
        run(tmp_path, redis_url, sys.executable, "-c", f"import {name}")
    new_worker(agents="guarded", env={"PYTHONPATH": str(tmp_path)})
    done = run(tmp_path, redis_url, *agents_command("celery-agents submit careful hello --wait"))
    assert done.stdout.strip() == "metadata: {'last_step': 1}"


def test_the_capabilities_page_s_agents_say_what_it_says(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("docs/capabilities.md")
    page.write(tmp_path)
    new_worker(agents="counting,support_desk", env={"PYTHONPATH": str(tmp_path)})
    submits = [line for line in page.commands if line.startswith("celery-agents submit")]
    for submit, output in zip(submits, page.outputs, strict=True):
        assert run(tmp_path, redis_url, *agents_command(submit)).stdout.strip() == output.strip()


def test_the_page_about_children_prints_what_it_says(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("docs/children.md")
    page.write(tmp_path)
    new_worker(agents="newsroom,frontdesk", env={"PYTHONPATH": str(tmp_path)})
    assert run(tmp_path, redis_url, sys.executable, "edition.py").stdout == page.outputs[0]
    done = run(tmp_path, redis_url, *agents_command("celery-agents submit frontdesk 'My bill is wrong.' --wait"))
    assert done.stdout.strip() == "Billing looks at: My bill is wrong."


def test_the_page_about_runs_prints_what_it_says(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("docs/runs.md")
    page.write(tmp_path)
    new_worker(agents="investigator", env={"PYTHONPATH": str(tmp_path)})
    for script, output in zip(("look.py", "building.py"), page.outputs, strict=True):
        assert run(tmp_path, redis_url, sys.executable, script).stdout == output


def test_the_page_about_long_tasks_prints_what_it_says(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("docs/smart.md")
    page.write(tmp_path)
    new_worker(agents="researcher,guarded", env={"PYTHONPATH": str(tmp_path)})
    for script, output in zip(("watch.py", "ask_guarded.py"), page.outputs, strict=True):
        assert run(tmp_path, redis_url, sys.executable, script).stdout == output


def test_the_page_about_people_answers_holds_and_starts_later(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("docs/people.md")
    page.write(tmp_path)
    new_worker(agents="cashier", env={"PYTHONPATH": str(tmp_path)})
    for script, output in zip(("reviewer.py", "holding.py"), page.outputs, strict=True):
        assert run(tmp_path, redis_url, sys.executable, script).stdout == output


def test_the_page_about_messages_delivers_takes_back_and_closes(
    tmp_path: Path, redis_url: str, new_worker: Any
) -> None:
    page = read_document("docs/messages.md")
    page.write(tmp_path)
    new_worker(agents="writer,refunds", env={"PYTHONPATH": str(tmp_path)})
    for script, output in zip(("changing_minds.py", "changing_orders.py"), page.outputs, strict=True):
        assert run(tmp_path, redis_url, sys.executable, script).stdout == output


def test_the_services_page_s_client_and_sender_work(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    read_document("README.md").write(tmp_path)
    read_document("docs/services.md").write(tmp_path)
    new_worker(agents="helpdesk", env={"PYTHONPATH": str(tmp_path)})
    printed = run(tmp_path, redis_url, sys.executable, "client_example.py").stdout.splitlines()
    assert printed == ["completed 2", "completed", "['completed']"]
    *events, status, answer = run(tmp_path, redis_url, sys.executable, "async_example.py").stdout.splitlines()
    assert (events[-1], status) == ("execution_completed 2", "completed 2")
    assert answer == "Refunds take five days. I opened a ticket for you."
    run(tmp_path, redis_url, sys.executable, "sender.py")
    follow = (
        "from celery_agents import AgentClient\n"
        "import time\n"
        "client, deadline = AgentClient(), time.monotonic() + 20\n"
        "while len(page := client.list(status='completed').items) < 3 and time.monotonic() < deadline: time.sleep(0.1)\n"
        "print(len(page))\n"
    )
    assert run(tmp_path, redis_url, sys.executable, "-c", follow).stdout.strip() == "3"
    tasks = "import project; print(sorted(name for name in project.app.tasks if not name.startswith('celery.')))"
    found = run(tmp_path, redis_url, sys.executable, "-c", tasks).stdout
    assert "'project.ordinary'" in found
    assert "'celery_agents.step'" in found


def test_the_replacement_of_a_task_runs_before_and_after(tmp_path: Path, redis_url: str, new_worker: Any) -> None:
    page = read_document("docs/replace-your-task.md")
    page.write(tmp_path)
    ask = "import before; print(before.answer_customer('Order 17 arrived broken'))"
    before = run(tmp_path, redis_url, sys.executable, "-c", ask).stdout.strip()
    assert before == "Done: refunded 24.00 for order 17 under a new key."
    new_worker(agents="after", env={"PYTHONPATH": str(tmp_path)})
    assert run(tmp_path, redis_url, sys.executable, "caller.py").stdout.strip() == page.outputs[0].strip()
    assert run(tmp_path, redis_url, sys.executable, "streaming.py").stdout.strip() == "execution_completed"
    # The job is short: the stop may find it running, in its last step, or ended.
    stopped = run(tmp_path, redis_url, sys.executable, "stopping.py").stdout.strip()
    assert stopped in ("nothing was running", "stopped", "completed")
    assert run(tmp_path, redis_url, sys.executable, "one_at_a_time.py").stdout.strip() == "completed completed"


def test_the_pages_use_one_idempotency_key_for_one_message(tmp_path: Path) -> None:
    messages: dict[str, set[str]] = {}
    for page in PAGES:
        for text in read_document(page).files.values():
            calls = re.findall(r'"([^"]+)",?\s+idempotency_key="([^"]+)"', text)
            calls += [(m, k) for m, k in re.findall(r'"message": "([^"]+)", "idempotency_key": "([^"]+)"', text)]
            for message, key in calls:
                messages.setdefault(key, set()).add(f"{page}: {message}")
    assert len(messages) >= 5
    assert [said for said in messages.values() if len(said) > 1] == []


def test_every_command_of_the_pages_exists_with_its_options(tmp_path: Path, redis_url: str) -> None:
    wanted: dict[str, set[str]] = {}
    targets = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for line in read_document(page).commands:
            words = shlex.split(line)
            if words[:2] == ["celery-agents", "--app"]:  # an option of the program itself
                del words[1:3]
            if words[0] == "celery-agents":
                wanted.setdefault(words[1], set()).update(word for word in words if word.startswith("--"))
            elif words[0] == "make":
                assert f"\n{words[1]}:" in targets, f"{page}: {line}"
    assert wanted
    for command, options in wanted.items():
        told = run(tmp_path, redis_url, sys.executable, "-m", "celery_agents", command, "--help").stdout
        assert all(option in told for option in options), f"{command} {options}"
