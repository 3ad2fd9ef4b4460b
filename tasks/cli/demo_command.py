"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exits import ExitCode
from .progress import follow


def register(program: typer.Typer) -> None:
    """Add this module's command."""
    program.command()(demo)


def demo(
    question: Annotated[str | None, typer.Argument(help="What to find out.", show_default=False)] = None,
    path: Annotated[
        Path | None, typer.Option(help="Folder of text files to read; default: this project's documentation.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to use, like openai:gpt-5-mini; default: none.", show_default=False)
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --model: a server that speaks its protocol.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave Redis and the worker running afterwards.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep Redis's data and the logs here; default: a temporary folder.")
    ] = None,
    crash: Annotated[bool, typer.Option("--crash", help="Kill -9 the worker in the middle of a step.")] = False,
) -> None:
    """Run a real job on this machine: embedded Redis, a worker, an agent that reads files and answers with quotations.

    Needs no model, no key and no set-up. The agent lists and searches files, reads several in one step, and answers.

    \b
    Examples:
      celery-agents demo
      celery-agents demo --path ~/notes "What did we decide about backups?"
      OPENAI_API_KEY=… celery-agents demo --model openai:gpt-5-mini "How is a lost message found?"
      celery-agents demo --crash
    """
    _check_options(question, path, model, keep=keep, crash=crash)
    from ...demo.run import Research, answer

    research = Research.asked(question, path=path, model=model, base_url=base_url, data=data_dir)
    if crash:
        from ...demo.crash import crash as run_with_crash

        ended_well = run_with_crash(research, follow).holds
    else:
        ended_well = answer(research, follow, keep=keep).status == "completed"
    raise typer.Exit(ExitCode.DONE if ended_well else ExitCode.FAILED)


def _check_options(question: str | None, path: Path | None, model: str | None, *, keep: bool, crash: bool) -> None:
    if path is not None and not question:
        raise typer.BadParameter("say what to find out in the files of --path: demo --path DIR QUESTION")
    if crash and (model is not None or keep):
        raise typer.BadParameter("--crash runs without a model and keeps nothing: leave out --model and --keep")
