"""The demo as it runs on one machine: embedded Redis, a worker, a job, its progress and its answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..tasks.local.dev_stack import DevStack
from ..worker.errors import ConfigurationError
from .agent import BASE_URL_VARIABLE, DEFAULT_QUESTION, MODEL_VARIABLE, NAME, research_agent
from .folder import Folder, NotReadable
from .tools import PATH_VARIABLE, documentation

if TYPE_CHECKING:
    from ..tasks.client.job import Job, Result

AGENTS_MODULE: Final = "celery_agents.demo.agents"
_DRAIN_SECONDS: Final = 5.0

Follow = Callable[["Job"], "Result"]
"""Shows a job's progress until it ends."""


@dataclass(frozen=True)
class Research:
    """A question, and the folder that holds its answer.

    Attributes:
        model: Model id of pydantic-ai; None: without a model.
        data: Where Redis keeps its data; None: a temporary folder.
    """

    question: str
    folder: Folder
    model: str | None = None
    base_url: str | None = None
    data: Path | None = None

    @classmethod
    def asked(
        cls,
        question: str | None = None,
        *,
        path: Path | None = None,
        model: str | None = None,
        base_url: str | None = None,
        data: Path | None = None,
    ) -> Research:
        """From what somebody asked for; what is left out is this project's documentation and a question about it.

        Raises:
            ConfigurationError: There is no such folder, or the model cannot be asked: an extra or a key is missing.
        """
        research_agent(model, base_url).answering.check()
        try:
            folder = Folder.at(path or documentation())
        except NotReadable as error:
            raise ConfigurationError(str(error)) from error
        return cls(question=question or DEFAULT_QUESTION, folder=folder, model=model, base_url=base_url, data=data)

    def environment(self, agents_module: str) -> dict[str, str]:
        """Environment variables for the worker's process."""
        given = {MODEL_VARIABLE: self.model or "", BASE_URL_VARIABLE: self.base_url or ""}
        return {"CELERY_AGENTS_AGENTS": agents_module, PATH_VARIABLE: str(self.folder.root), **given}

    def headline(self) -> str:
        """Describe the run that is about to start, in one line."""
        how = f"with {self.model}" if self.model else "without a model"
        return f"A research agent, {how}, over the {len(self.folder.files())} files of {self.folder.root}"


def answer(research: Research, follow: Follow, *, keep: bool) -> Result:
    """Start a machine, submit the question, show the progress, print the answer, clean up.

    Args:
        keep: Leave Redis and the worker running, and say how to look at them.
    """
    with dev_stack_for(research, AGENTS_MODULE) as machine:
        worker = machine.start_worker()
        say(research.headline())
        say(f"Redis {machine.redis.url}, worker {worker.pid}")
        say(f"\nQuestion: {research.question}\n")
        job = submitted(machine, research.question)
        result = follow(job)
        say(f"\n{result.final_response}\n")
        if keep:
            machine.keep()
            _say_how_to_look(machine, job)
        return result


@contextmanager
def dev_stack_for(research: Research, agents_module: str) -> Generator[DevStack]:
    """A machine with its Redis running, and logs in files."""
    environment = research.environment(agents_module)
    with DevStack(environment, data=research.data, drain_seconds=_DRAIN_SECONDS, logs=True) as machine:
        yield machine


def submitted(machine: DevStack, question: str) -> Job:
    """The question as a job of the machine's workers."""
    from ..tasks.client.client import AgentClient

    client = AgentClient(settings=machine.settings())
    client.wait_for_agent(NAME, timeout=30.0, check=machine.check)
    return client.submit(NAME, question)


def say(text: str) -> None:
    """Print, at once."""
    print(text, flush=True)


def _say_how_to_look(machine: DevStack, job: Job) -> None:
    pids = " ".join(str(each.pid) for each in machine.workers)
    say(f"Still running, with its data and logs in {machine.redis.data}. Look at it:")
    say(f"  export CELERY_AGENTS_REDIS_URL={machine.redis.url}")
    say(f"  celery-agents show {job.session_id}")
    say(f'  celery-agents send {job.session_id} "another question" --wait')
    say(f"End it with: kill {pids}; kill {machine.redis.pid}")
    sys.stdout.flush()
