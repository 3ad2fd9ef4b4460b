"""Folders of other people's services, as they look: each with a `tasks.py` and a `config.py` of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .processes import Process

AGENTS = """\
import asyncio

from celery_agents import Agent, tool
from celery_agents.worker.drivers import CallTool


@tool(effect="pure")
def look_up(word: str) -> str:
    '''Look a word up.'''
    return word.upper()


async def answer(state):
    asked = state.messages[-1].content if state.messages[-1].role == "user" else ""
    if asked.startswith("fail"):
        raise ValueError("no such thing, api_key=sk-abcdefghijklmnopqrstuvwxyz0123456789")
    if asked.startswith("slow"):
        await asyncio.sleep(30)
    return [CallTool("look_up", word="agents")] if asked.startswith("look") else "found: AGENTS"


clerk = Agent("clerk", driver=answer, tools=[look_up])
"""

SERVICE: Mapping[str, str] = {
    "config.py": "NAME = 'a service'\n",
    "tasks.py": "import config\n\nfrom shop import app\n\n\n@app.task(name='shop.add')\ndef add(a, b):\n    return a + b\n",
    "shop.py": """\
import os

from celery import Celery

app = Celery("shop", broker=os.environ["CELERY_AGENTS_REDIS_URL"], include=["tasks"])
""",
}

EXISTING: Mapping[str, str] = {
    "config.py": "GREETING = 'hello'\n",
    "tasks.py": "MARK = 'a tasks.py of the project'\n",
    "proj/__init__.py": "from .celery import app as celery\n",
    "proj/agents.py": AGENTS,
    "proj/tasks.py": """\
import os
from pathlib import Path

import config
from .celery import app


@app.task
def greet(name):
    Path("greeted").write_text(f"{config.GREETING} {name}")
""",
    "proj/celery.py": """\
import os

from celery import Celery
from celery_agents import install

app = Celery("proj")
app.conf.update(
    broker_url=os.environ["PROJ_BROKER"], include=["proj.tasks"], timezone="Europe/Paris",
    task_default_queue="celery", task_acks_late=True, worker_prefetch_multiplier=4,
)
BEFORE = {key: repr(value) for key, value in dict(app.conf).items()}
install(app, agents="proj.agents")
AFTER = {key: repr(value) for key, value in dict(app.conf).items()}
""",
}


class Project:
    """Such a folder; its commands run in it, with nothing of this test's environment but the addresses."""

    def __init__(self, folder: Path, files: Mapping[str, str], env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.env = dict(env)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def python(self, script: str, timeout: float = 40) -> str:
        """What a script prints that is run in the folder.

        Raises:
            AssertionError: It failed; with what it said.
        """
        return self.run([sys.executable, "-c", script], timeout)

    def run(self, command: list[str], timeout: float = 40) -> str:
        """What a command prints that is run in the folder."""
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def process(self, name: str, *arguments: str, env: Mapping[str, Any] | None = None) -> Process:
        """A process that runs `python -m …` in the folder; not started yet."""
        wiped: dict[str, str | None] = {key: None for key in os.environ if key.startswith("CELERY_AGENTS_")}
        return Process(
            name, [sys.executable, "-m", *arguments], self.folder, {**wiped, **self.env, "NO_PROXY": "127.0.0.1", **(env or {})}
        )  # fmt: skip

    def celery(self, *arguments: str, name: str = "celery") -> Process:
        """A process of the command `celery`, which does not have the folder on Python's path; not started yet."""
        wiped: dict[str, str | None] = {key: None for key in os.environ if key.startswith("CELERY_AGENTS_")}
        command = str(Path(sys.executable).with_name("celery"))
        env = {**wiped, **self.env, "NO_PROXY": "127.0.0.1", "PYTHONPATH": None}
        return Process(name, [command, *arguments], self.folder, env)

    def _environment(self) -> dict[str, str]:
        mine = {key: value for key, value in os.environ.items() if not key.startswith("CELERY_AGENTS_")}
        return {**mine, **self.env, "NO_PROXY": "127.0.0.1"}
