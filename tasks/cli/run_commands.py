"""Commands that run processes: up (everything on this machine), worker, flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ..local.dev_stack import DevStack, flower_is_installed, new_credentials
from ..local.embedded_redis import USUAL_PORT
from .options import RedisUrl, settings_for

Agents = Annotated[
    str | None,
    typer.Option(metavar="MODULES", help="Modules that define agents, comma separated.", show_default=False),
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "-c", min=1, help="Steps at the same time.", show_default=False)
]

_DEMO_AGENTS: Final = "celery_agents.demo.agents"
"""Agents that `up` offers when none are named, so that there is one to submit to."""


def register(program: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (up, worker, flower):
        program.command()(command)


def up(
    agents: Agents = None,
    concurrency: Concurrency = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep Redis's data here. Default: a temporary folder, removed at the end.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Redis; another one when it is taken.")] = 6379,
    flower_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Flower; another when taken.")] = 5555,
    with_flower: Annotated[
        bool, typer.Option("--flower/--no-flower", help="Start Flower when it is installed.")
    ] = True,
) -> None:
    """Run everything on this machine: an embedded Redis, a worker and Flower. Ctrl-C ends it.

    Everything listens on the loopback interface only. Flower gets a generated password, which is printed.

    \b
    Examples:
      celery-agents up --agents my_service.agents
      celery-agents up --agents my_agents --data-dir ./data --no-flower
    """
    settings = settings_for(None, agents=agents, concurrency=concurrency)
    offered = settings.agents or _DEMO_AGENTS
    environment = {"CELERY_AGENTS_AGENTS": offered, "CELERY_AGENTS_CONCURRENCY": str(settings.concurrency)}
    with DevStack(environment, data=data_dir, redis_port=port, drain_seconds=settings.drain_seconds) as stack:
        stack.start_worker()
        print(f"Redis   {stack.redis.url}  (data: {stack.redis.data}{'' if data_dir else ', removed at the end'})")
        print(f"Agents  of {offered}{'' if settings.agents else ': researcher; give your own with --agents MODULE'}")
        _start_flower(stack, flower_port if with_flower else None)
        if stack.redis.port != USUAL_PORT:
            print(f"Elsewhere in this terminal:  export CELERY_AGENTS_REDIS_URL={stack.redis.url}")
        print('Try:    celery-agents submit NAME "question" --wait      Ctrl-C ends everything.', flush=True)
        try:
            stack.wait()
        except KeyboardInterrupt:
            print("stopping; running steps may finish", flush=True)


def _start_flower(stack: DevStack, port: int | None) -> None:
    if port is None:
        return
    if not flower_is_installed():
        print("Flower  is not installed (pip install 'celery-agents[flower]'); going on without it")
        return
    credentials = new_credentials()
    stack.start_flower(port, credentials)
    print(f"Flower  {stack.flower_url}  user and password {credentials}")


def worker(
    agents: Agents = None,
    concurrency: Concurrency = None,
    pool: Annotated[str | None, typer.Option(help="greenlets, threads, prefork or solo.", show_default=False)] = None,
    redis_url: RedisUrl = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the worker.", show_default=False)] = None,
) -> None:
    """Run a worker in this process. SIGTERM lets running steps finish first.

    \b
    Examples:
      celery-agents worker --agents my_service.agents
      CELERY_AGENTS_AGENTS=my_service.agents celery-agents worker -c 20 --redis-url redis://cache:6379/0
    """
    from ..local.worker import run_worker

    settings = settings_for(redis_url, agents=agents, concurrency=concurrency, pool=pool)
    raise typer.Exit(run_worker(settings, name))


def flower(
    address: Annotated[str, typer.Option(help="Interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5555,
    basic_auth: Annotated[
        str | None,
        typer.Option(envvar="FLOWER_BASIC_AUTH", metavar="USER:PASSWORD", help="Who may look; needed beyond loopback."),
    ] = None,
    redis_url: RedisUrl = None,
) -> None:
    """Run Flower, which shows workers and steps in a browser.

    Without credentials it refuses to listen beyond this machine: it shows what agents work on, and can stop them.

    \b
    Examples:
      celery-agents flower
      FLOWER_BASIC_AUTH=ops:secret celery-agents flower --address 0.0.0.0
    """
    from ..observability.flower import run_flower

    run_flower(settings_for(redis_url), address=address, port=port, basic_auth=basic_auth)
