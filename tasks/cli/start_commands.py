"""Commands that run processes, and that start a project: demo, new, up, worker, serve, flower."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ...config.settings import SettingsError
from ..local.dev_stack import DATA_FOLDER, DevStack, archive_environment, flower_is_installed, http_is_installed
from .exits import ExitCode
from .named_app import refuse_app
from .options import RedisUrl, settings_for

Agents = Annotated[str | None, typer.Option(metavar="MODULES", help="Modules that define agents, comma separated.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", "-c", min=1, help="Steps at the same time.")]

_DEMO_AGENTS: Final = "celery_agents.demo.agents"
"""Agents that `up` offers when none are named, so that there is one to submit to."""

_RELOAD_DRAIN_SECONDS: Final = 3.0
"""How long running steps may finish when a file has changed; longer would keep the developer waiting."""


def demo(
    model: Annotated[str | None, typer.Option(help="Model to use, like openai:gpt-5-mini; default: none.")] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --model: a server that speaks its protocol.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the agent, Redis and Flower running afterwards.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep Redis's data and the logs here; default: a temporary folder.")
    ] = None,
) -> None:
    """See a refund happen once, though its worker is killed.

    The same job runs beside it as an ordinary Celery task, which refunds twice. Everything is real: an embedded Redis,
    a ledger in a process of its own, four workers, kill -9. It needs no key and takes less than a minute.

    \b
    Examples:
      celery-agents demo
      celery-agents demo --keep
      OPENAI_API_KEY=… celery-agents demo --model openai:gpt-5-mini
    """
    refuse_app("demo", "leave it out")
    if base_url is not None and model is None:
        raise typer.BadParameter("--base-url goes with --model: name the model that the server offers")
    from ...demo.run import run_demo

    report = run_demo(model=model, base_url=base_url, data=data_dir, keep=keep, say=_print_now)
    raise typer.Exit(ExitCode.DONE if report.holds else ExitCode.FAILED)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project and of its new folder.")],
) -> None:
    """Write a small project that runs.

    It has an agent with two tools, its test, settings and a compose file.

    An existing folder is never changed.

    \b
    Example:
      celery-agents new my_shop
    """
    refuse_app("new", "leave it out")
    from ..local.new_project import check_project_name, write_project

    folder, files = write_project(name, Path.cwd())
    print(f"{folder}:")
    for file in files:
        print(f"  {file}")
    print(
        "\nNext:\n"
        f"  cd {name}\n"
        "  pip install pytest && python -m pytest                          the agent under faults, without Redis\n"
        f"  celery-agents up --agents {check_project_name(name)}.agents --reload\n"
        '  celery-agents submit support "Order 17 arrived broken" --wait   in another terminal'
    )


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
    flower_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of Flower: 5555, or another when it is taken.")
    ] = None,
    with_flower: Annotated[
        bool, typer.Option("--flower/--no-flower", help="Start Flower when it is installed.")
    ] = True,
    http_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the HTTP interface: 8080, or another when it is taken."),
    ] = None,
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
    from ..local.supervisor import FileWatcher

    for name, port_of_part, is_wanted in (("flower", flower_port, with_flower), ("http", http_port, with_http)):
        if port_of_part is not None and not is_wanted:
            raise typer.BadParameter(f"it says nothing beside --no-{name}", param_hint=f"--{name}-port")
    refuse_app("up", "run the project's workers with celery -A as before")
    settings = settings_for(None, agents=agents, concurrency=concurrency)
    if settings.replicas:
        raise SettingsError("the Redis of celery-agents up has no replica to wait for; unset CELERY_AGENTS_REPLICAS")
    offered = settings.agents or _DEMO_AGENTS
    drain_seconds = min(settings.drain_seconds, _RELOAD_DRAIN_SECONDS) if reload else settings.drain_seconds
    environment = {
        "CELERY_AGENTS_AGENTS": offered,
        "CELERY_AGENTS_CONCURRENCY": str(settings.concurrency),
        "CELERY_AGENTS_DRAIN_SECONDS": str(drain_seconds),
        **archive_environment(settings, data_dir),
    }
    watcher = FileWatcher(Path.cwd()) if reload else None
    _prepare_folder(data_dir)
    with DevStack(environment, data=data_dir, redis_port=port, drain_seconds=drain_seconds, logs=True) as stack:
        development = Development(stack, modules=offered, say=_say, watcher=watcher)
        try:
            _say(f"starting a worker with the agents of {offered}")
            has_flower = with_flower and _is_there(flower_is_installed(), "Flower", "flower")
            has_http = with_http and _is_there(http_is_installed(), "the HTTP interface", "http")
            ready = development.start(
                (flower_port or 5555) if has_flower else None, (http_port or 8080) if has_http else None
            )
            for line in ready.lines(elsewhere=ready.redis_url != settings.redis_url, reload=reload):
                print(line, flush=True)
            development.run()
        except KeyboardInterrupt:
            _say("stopping; running steps may finish")


def worker(
    agents: Agents = None,
    concurrency: Concurrency = None,
    pool: Annotated[str | None, typer.Option(help="greenlets, threads, prefork or solo.")] = None,
    queues: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only agents of these queues, comma separated.")
    ] = None,
    redis_url: RedisUrl = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the worker.")] = None,
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


def serve(
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to listen; default: CELERY_AGENTS_HTTP_ADDRESS, 127.0.0.1:8080."),
    ] = None,
    redis_url: RedisUrl = None,
) -> None:
    """Serve the page, and the HTTP interface for other languages. Any number of processes may serve the same Redis.

    Beyond this machine callers need a token: CELERY_AGENTS_HTTP_TOKEN_SECRETS=<token>:<scope>+<scope>, of the scopes
    submit, read, answer, stop and admin.

    \b
    Examples:
      celery-agents serve
      curl http://127.0.0.1:8080/v1/agents
    """
    from ...config.logs import configure_logging, try_to_print
    from ...worker.errors import MissingExtra
    from ...worker.known_secrets import redact_known, remember_secrets

    settings = settings_for(redis_url, http_address=address)
    try:
        from ..http.server import serve as serve_http
    except ModuleNotFoundError as error:
        raise MissingExtra("http", "the HTTP interface") from error
    remember_secrets(settings.secrets)
    logging.basicConfig(format="[%(asctime)s: %(levelname)s] %(message)s")
    configure_logging(settings, redact=redact_known, everybody=True)

    def tell(url: str) -> None:
        try_to_print(lambda: _print_now(f"celery-agents serves {url}: the page, and {url}/openapi.json"))

    serve_http(settings, tell)


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


def _prepare_folder(data: Path) -> None:
    """Keep a folder of our own name out of the project's git; another folder is the user's."""
    if data.name == DATA_FOLDER and not data.exists():
        with contextlib.suppress(OSError):  # Redis says what is wrong with the folder
            data.mkdir(parents=True)
            (data / ".gitignore").write_text("*\n")


def _is_there(is_installed: bool, what: str, extra: str) -> bool:
    if not is_installed:
        _say(f"{what} is not installed (pip install 'celery-agents[{extra}]'); everything else runs without it")
    return is_installed


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_now(text: str) -> None:
    print(text, flush=True)
