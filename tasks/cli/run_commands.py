"""Commands that run processes: up (everything on this machine), worker, flower."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ..local.dev_stack import DATA_FOLDER, DevStack, flower_is_installed, http_is_installed
from .named_app import refuse_app
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

_RELOAD_DRAIN_SECONDS: Final = 3.0
"""How long running steps may finish when a file has changed; longer would keep the developer waiting."""


def up(
    agents: Agents = None,
    concurrency: Concurrency = None,
    data_dir: Annotated[
        Path, typer.Option(help="Folder of Redis's data and of the logs; it stays when everything ends.")
    ] = Path(DATA_FOLDER),
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart the worker when a Python file changes; for development.")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Redis; another one when it is taken.")] = 6379,
    flower_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Flower; another when taken.")] = 5555,
    with_flower: Annotated[
        bool, typer.Option("--flower/--no-flower", help="Start Flower when it is installed.")
    ] = True,
    http_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the HTTP interface; another when taken.")
    ] = 8080,
    with_http: Annotated[
        bool, typer.Option("--http/--no-http", help="Start the HTTP interface when it is installed.")
    ] = True,
) -> None:
    """Run everything on this machine. Ctrl-C ends it.

    That is an embedded Redis, a worker, the HTTP interface and Flower.

    A part that ends is started again. The data stay in the folder of --data-dir: a job that was not done goes on
    when the command runs the next time. Everything listens on the loopback interface only. Flower gets a generated
    password, which is printed.

    \b
    Examples:
      celery-agents up --agents my_agents --reload
      celery-agents up --agents my_service.agents --data-dir ./data --no-flower
    """
    from ..local.development import Development
    from ..local.file_watcher import FileWatcher

    refuse_app("up", "run the project's workers with celery -A as before")
    settings = settings_for(None, agents=agents, concurrency=concurrency)
    offered = settings.agents or _DEMO_AGENTS
    drain_seconds = min(settings.drain_seconds, _RELOAD_DRAIN_SECONDS) if reload else settings.drain_seconds
    environment = {
        "CELERY_AGENTS_AGENTS": offered,
        "CELERY_AGENTS_CONCURRENCY": str(settings.concurrency),
        "CELERY_AGENTS_DRAIN_SECONDS": str(drain_seconds),
    }
    watcher = FileWatcher(Path.cwd()) if reload else None
    _prepare_folder(data_dir)
    with DevStack(environment, data=data_dir, redis_port=port, drain_seconds=drain_seconds, logs=True) as stack:
        development = Development(stack, modules=offered, say=_say, watcher=watcher)
        try:
            _say(f"starting a worker with the agents of {offered}")
            ready = development.start(
                flower_port if with_flower and _has_flower() else None, http_port if with_http and _has_http() else None
            )
            for line in ready.lines(elsewhere=ready.redis_url != settings.redis_url, reload=reload):
                print(line, flush=True)
            development.run()
        except KeyboardInterrupt:
            _say("stopping; running steps may finish")


def _prepare_folder(data: Path) -> None:
    """Keep a folder of our own name out of the project's git; another folder is the user's."""
    if data.name == DATA_FOLDER and not data.exists():
        with contextlib.suppress(OSError):  # Redis says what is wrong with the folder
            data.mkdir(parents=True)
            (data / ".gitignore").write_text("*\n")


def _has_flower() -> bool:
    if not flower_is_installed():
        _say("Flower is not installed (pip install 'celery-agents[flower]'); everything else runs without it")
        return False
    return True


def _has_http() -> bool:
    if not http_is_installed():
        _say("the HTTP interface is not installed (pip install 'celery-agents[http]'); everything else runs without it")
        return False
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def worker(
    agents: Agents = None,
    concurrency: Concurrency = None,
    pool: Annotated[str | None, typer.Option(help="greenlets, threads, prefork or solo.", show_default=False)] = None,
    queues: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Only agents of these queues, comma separated.", show_default=False),
    ] = None,
    redis_url: RedisUrl = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the worker.", show_default=False)] = None,
) -> None:
    """Run a worker in this process. SIGTERM lets running steps finish first.

    \b
    Examples:
      celery-agents worker --agents my_service.agents
      celery-agents worker --agents my_service.agents --queues gpu
      CELERY_AGENTS_AGENTS=my_service.agents celery-agents worker -c 20 --redis-url redis://cache:6379/0
    """
    from ..local.worker import run_worker

    refuse_app("worker", "start a worker of the project: celery -A MODULE worker --pool=threads")
    settings = settings_for(redis_url, agents=agents, concurrency=concurrency, pool=pool, queues=queues)
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
