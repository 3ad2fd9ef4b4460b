"""The processes of the demo: Redis, the ledger, and two workers on each side."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..tasks.client.client import AgentClient
from ..tasks.local.child_processes import Child
from ..tasks.local.dev_stack import DevStack
from ..tasks.local.embedded_redis import LOOPBACK, free_port
from ..tasks.own_app import OwnApp
from .agents import BASE_URL_VARIABLE, MODEL_VARIABLE, NAME, support_agent
from .ledger import HOLD_VARIABLE, URL_VARIABLE, WORKER_VARIABLE, Ledger, Side
from .plain_worker import create_plain_app, visibility_seconds

WORKERS: Final = 2
_AGENTS_MODULE: Final = "celery_agents.demo.agents"
_DRAIN_SECONDS: Final = 2.0
_HOLD_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 60.0
_PYTHON: Final = (sys.executable, "-P", "-m")


@dataclass(frozen=True)
class Stage:
    """Everything that runs.

    Attributes:
        ledger_process: The process that keeps the ledger.
        workers: The workers by side and name.
        plain_app: The app of the plain Celery workers; its broker is another database of the same Redis.
        visibility_seconds: Time after which their broker delivers an unacknowledged message again.
    """

    stack: DevStack
    ledger: Ledger
    ledger_process: Child
    client: AgentClient
    workers: dict[tuple[Side, str], Child]
    plain_app: OwnApp
    visibility_seconds: int


@contextmanager
def open_stage(model: str | None, base_url: str | None, data: Path | None) -> Generator[Stage]:
    """Start all processes and wait until every worker takes jobs.

    Args:
        model: Model id of pydantic-ai; None: a deterministic function in its place.
        base_url: A server that speaks the provider's protocol.
        data: Folder of Redis's data and the logs; None: a temporary one.

    Raises:
        ConfigurationError: The model cannot be asked, or there is no redis-server.
        ChildEnded: A process has ended while it started.
    """
    support_agent(model, base_url).answering.check()
    environment = {
        "CELERY_AGENTS_AGENTS": _AGENTS_MODULE,
        "CELERY_AGENTS_CONCURRENCY": "4",
        MODEL_VARIABLE: model or "",
        BASE_URL_VARIABLE: base_url or "",
        HOLD_VARIABLE: str(_HOLD_SECONDS),
    }
    with DevStack(environment, data=data, drain_seconds=_DRAIN_SECONDS, logs=True) as stack:
        ledger, ledger_process = _start_ledger(stack)
        plain_broker = stack.redis.url.removesuffix("/0") + "/1"
        workers = {(side, f"worker {n}"): _start(stack, side, n, plain_broker) for side in Side for n in (1, WORKERS)}
        client = AgentClient(settings=stack.settings())
        client.wait_for_agent(NAME, timeout=_PATIENCE_SECONDS, check=stack.check)
        _wait(lambda: len(client.store.registry.workers()) == WORKERS, "workers", stack)
        for (side, _), worker in workers.items():
            if side is Side.PLAIN:
                _wait(lambda worker=worker: " ready." in worker.read_log_tail(20), worker.name, stack)
        yield Stage(
            stack=stack,
            ledger=ledger,
            ledger_process=ledger_process,
            client=client,
            workers=workers,
            plain_app=create_plain_app(plain_broker, model),
            visibility_seconds=visibility_seconds(model),
        )


def _start(stack: DevStack, side: Side, number: int, plain_broker: str) -> Child:
    stack.environment[WORKER_VARIABLE] = f"worker {number}"
    if side is Side.AGENTS:
        return stack.start_worker(number)
    command = [*_PYTHON, "celery_agents.demo.plain_worker", plain_broker, f"plain{number}"]
    return stack.start(f"plain worker {number}", command)


def _start_ledger(stack: DevStack) -> tuple[Ledger, Child]:
    """Start the ledger in a process of its own, which survives the workers."""
    port = free_port()
    ledger = Ledger(f"http://{LOOPBACK}:{port}/")
    file = stack.redis.data / "ledger.jsonl"
    process = stack.start("ledger", [*_PYTHON, "celery_agents.demo.ledger", str(port), str(file)])
    _wait(ledger.answers, "ledger", stack)
    stack.environment[URL_VARIABLE] = ledger.url
    return ledger, process


def _wait(is_ready: Callable[[], bool], name: str, stack: DevStack) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_ready():
        stack.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the {name} did not get ready within {_PATIENCE_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
