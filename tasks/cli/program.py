"""The program: commands put together, errors translated into a sentence and an exit code."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from ... import __version__
from . import (
    demo_command as tryout,
)
from . import (
    doctor_command as doctoring,
)
from . import (
    health_command as probing,
)
from . import (
    job_commands as jobs,
)
from . import (
    read_commands as readers,
)
from . import (
    run_commands as machinery,
)
from .exits import EXPECTED, ExitCode, exit_code, sentence

_EPILOG = """\b
Environment (each setting of the product is CELERY_AGENTS_<NAME>):
  CELERY_AGENTS_REDIS_URL    the store, and the broker unless CELERY_AGENTS_BROKER_URL is set;
                             default redis://127.0.0.1:6379/0
  CELERY_AGENTS_AGENTS       modules that define agents, comma separated; workers import them
  OPENAI_API_KEY and so on   keys of model providers, read by the provider's own client

\b
Exit codes: 0 done, 1 the execution failed, 2 usage, 3 Redis not reachable.

\b
A first try:
  celery-agents demo                       a real job, nothing to set up
  celery-agents up --agents my_agents      everything on this machine
  celery-agents submit NAME "question" --wait
"""

program = typer.Typer(
    name="celery-agents",
    help="Durable AI-agent jobs on Celery and Redis.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

for commands in (machinery, jobs, readers, doctoring, probing, tryout):
    commands.register(program)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"celery-agents {__version__}")
        raise typer.Exit


@program.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable AI-agent jobs on Celery and Redis."""


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code; never with a traceback for what can be expected."""
    warnings.showwarning = _complain_of
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal cannot show is shown escaped
    try:
        program(args=None if arguments is None else list(arguments), prog_name="celery-agents")
    except EXPECTED as error:
        _complain(sentence(error))
        sys.exit(exit_code(error))
    except BrokenPipeError:
        _drop_output()
        sys.exit(ExitCode.FAILED)
    sys.exit(ExitCode.DONE)


def _complain(text: str) -> None:
    print(f"celery-agents: {text}", file=sys.stderr)


def _complain_of(message: Warning | str, *_: object) -> None:
    _complain(str(message))


def _drop_output() -> None:
    """Whoever read our output has gone (`| head`); the interpreter shall not complain about it at exit."""
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115, PTH123 — it stays open until the process ends
