"""The program `celery-agents`: its commands, and errors as a sentence and an exit code."""

from __future__ import annotations

import errno
import io
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import isfunction
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from ...config.escaping import indent
from ...config.logs import drop_output
from ...worker.known_secrets import redact_known
from .exits import EXPECTED, ExitCode, exit_code, sentence
from .named_app import AppOption, choose_app

_EPILOG = """\b
Environment (each setting of the product is CELERY_AGENTS_<NAME>):
  CELERY_AGENTS_REDIS_URL    the store, and the broker unless CELERY_AGENTS_BROKER_URL is set;
                             default redis://127.0.0.1:6379/0
  CELERY_AGENTS_AGENTS       modules that define agents, comma separated; workers import them
  OPENAI_API_KEY and so on   keys of model providers, read by the provider's own client

\b
Exit codes: 0 done, 1 the execution failed, 2 usage, 3 Redis not reachable, 4 not ended in time.

\b
A first try:
  celery-agents demo                       a killed worker and a refund that happens once
  celery-agents new my_shop                a small project that runs
  celery-agents up --agents my_agents      everything on this machine
  celery-agents submit NAME "question" --wait
"""

SECTIONS: Final[Mapping[str, str]] = {
    "Start": "start_commands",
    "Jobs": "job_commands",
    "Messages": "message_commands",
    "People": "request_commands",
    "Sessions": "session_commands",
    "Many": "bulk_commands",
    "Providers": "provider_commands",
    "Schedules": "schedule_commands",
    "Operation": "operation_commands",
}
"""The sections of the help, each with its module. A command is a public function there, in the order of the help."""

_HELP_WIDTH: Final = 80
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LazyCommands(TyperGroup):
    """A group that imports its modules one after the other until one has the command; help and a wrong name import all.

    All modules together take forty milliseconds to import, for which neither a probe nor a starting worker should wait.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands."""
        return [name for module in SECTIONS.values() for name in commands_of(module)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help, by section, each with the first sentence of its own help."""
        widest = max(map(len, self.list_commands(ctx)))
        for title, module in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(widest), each.get_short_help_str(_HELP_WIDTH))
                        for name, each in commands_of(module).items()
                    ]
                )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command; None for an unknown name, for which the group suggests others."""
        for title in ("Operation", *SECTIONS):  # a probe asks for `health` every few seconds
            self.commands.update(commands_of(SECTIONS[title]))
            if cmd_name in self.commands:
                break
        return super().get_command(ctx, cmd_name)


@cache
def commands_of(module: str) -> Mapping[str, Any]:
    """Import a module of this room and make its commands."""
    registered = typer.Typer(rich_markup_mode=None)
    for name, found in vars(import_module(f".{module}", __package__)).items():
        if isfunction(found) and found.__module__.endswith(module) and not name.startswith("_"):
            registered.command(name.rstrip("_").replace("_", "-"))(found)  # `list` would hide Python's
    return typer.main.get_group(registered).commands


program = typer.Typer(
    name="celery-agents",
    cls=LazyCommands,
    help="Durable AI-agent jobs on Celery and Redis.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ... import __version__  # in a clone it asks git, which takes longer than many a command

        print(f"celery-agents {__version__}")
        raise typer.Exit


@program.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    app: AppOption = None,
) -> None:
    """Durable AI-agent jobs on Celery and Redis."""
    del version  # printed by its callback
    choose_app(app)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code; an expected error is a sentence, not a traceback."""
    warnings.showwarning = _print_warning
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal cannot show is shown escaped
    try:
        _call_program(arguments)
    except EXPECTED as error:
        _print_error(sentence(error))
        sys.exit(exit_code(error))
    except BrokenPipeError:
        drop_output()
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:  # of os.getcwd
            _print_error("The current folder does not exist any more; change to another one.")
            sys.exit(ExitCode.USAGE)
        if error.errno not in _FULL:
            raise
        drop_output()
        _print_error(f"The output cannot be written whole: {error.strerror}.")
        sys.exit(ExitCode.FAILED)
    sys.exit(ExitCode.DONE)


def _open_closed_streams() -> None:
    """Let streams that were closed before the start lead nowhere; a connection would get their numbers otherwise."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open("/dev/null", mode))  # noqa: SIM115, PTH123 — it stays open until the process ends


def _call_program(arguments: Sequence[str] | None) -> None:
    try:
        program(args=None if arguments is None else list(arguments), prog_name="celery-agents")
    finally:
        sys.stdout.flush()  # here, where a full disk is a sentence; at the interpreter's exit it is none


def _print_error(text: str) -> None:
    print(f"celery-agents: {indent(redact_known(text))}", file=sys.stderr)


def _print_warning(message: Warning | str, *_: object) -> None:
    _print_error(str(message))
