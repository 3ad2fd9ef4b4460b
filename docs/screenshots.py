"""Takes the pictures of Flower in docs/images: a real worker, real steps, a real browser.

    python docs/screenshots.py

Needs the extra `flower`, a redis-server (or the extra `embedded`) and Chromium on PATH.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from celery_agents import AgentClient
from celery_agents.tasks.client.job import Job
from celery_agents.tasks.local.dev_stack import DevStack

AGENTS = '''
from celery_agents import Agent, ExecutionBudget, tool
from celery_agents.worker.state import InferenceResponse, InferenceUsage, ToolCall


@tool(effect="pure")
def search_docs(query: str) -> list[str]:
    """Search the documentation."""
    return [f"{query}: see chapter 3"]


@tool(effect="pure")
def read_file(name: str) -> str:
    """Read a file."""
    return f"contents of {name}"


PLAN = (
    (("search_docs", {"query": "late acknowledgement"}), ("search_docs", {"query": "visibility timeout"}),
     ("read_file", {"name": "broker.md"})),
    (("read_file", {"name": "changes-5.7.md"}),),
)


def research(state):
    step = state.execution.step_count
    usage = InferenceUsage(input=380 + 210 * step, output=32)
    if step == len(PLAN):
        return InferenceResponse(content="Messages are acknowledged early; the due index finds lost ones.", usage=usage)
    calls = tuple(ToolCall(id=f"call-{step}-{i}", name=name, args=args) for i, (name, args) in enumerate(PLAN[step]))
    return InferenceResponse(tool_calls=calls, usage=usage)


def break_down(state):
    raise RuntimeError("the archive refused the key sk-proj-abcdefghijklmnopqrstuvwxyz012345")


researcher = Agent("researcher", driver=research, tools=[search_docs, read_file])
archivist = Agent("archivist", driver=break_down)
'''
QUESTIONS = ("What changed in 5.7?", "How are lost messages found?", "When is a message acknowledged?")


def main() -> None:
    """Run the jobs and photograph their pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "images", help="folder of the pictures")
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
    )
    if not browser:
        sys.exit("no Chromium on PATH; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pictured.py").write_text(AGENTS, encoding="utf-8")
        environment = {"CELERY_AGENTS_AGENTS": "pictured", "PYTHONPATH": folder, "CELERY_AGENTS_CONCURRENCY": "8"}
        with DevStack(environment) as machine:
            flower = machine.start_flower(5555, "docs:pictures") and machine.flower_url
            address = flower.replace("://", "://docs:pictures@")
            wait_for(flower)
            machine.start_worker()
            client = AgentClient(machine.redis.url)
            client.wait_for_agent("archivist")
            jobs = [client.submit("researcher", question) for question in QUESTIONS]
            failed = client.submit("archivist", "Fetch the minutes of 1998")
            for job in (*jobs, failed):
                job.result(timeout=60)
            time.sleep(3)  # until Flower has heard of the last event
            photograph(browser, f"{address}/tasks", into / "flower-tasks.png", (1900, 860))
            photograph(browser, task_page(address, jobs[0], 2), into / "flower-step.png", (1400, 1250))
            photograph(browser, task_page(address, failed, 1), into / "flower-failed.png", (1400, 930))


def task_page(address: str, job: Job, step: int) -> str:
    """The address of a step's page."""
    return f"{address}/task/{job.execution_id}.{step}"


def wait_for(url: str) -> None:
    """Wait until Flower answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 60
    while True:
        try:
            opener.open(f"{url}/healthcheck", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def photograph(browser: str, url: str, into: Path, size: tuple[int, int]) -> None:
    """Open a page in a headless browser and keep what it shows."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser, "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--no-proxy-server",
                *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=8000", f"--screenshot={into}", url,
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    print(into)


if __name__ == "__main__":
    main()
