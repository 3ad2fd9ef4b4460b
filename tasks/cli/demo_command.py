"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exits import ExitCode


def demo(
    model: Annotated[
        str | None, typer.Option(help="Model to use, like openai:gpt-5-mini; default: none.", show_default=False)
    ] = None,
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
    if base_url is not None and model is None:
        raise typer.BadParameter("--base-url goes with --model: name the model that the server offers")
    from ...demo.run import run_demo

    report = run_demo(model=model, base_url=base_url, data=data_dir, keep=keep, say=_say)
    raise typer.Exit(ExitCode.DONE if report.holds else ExitCode.FAILED)


def _say(text: str) -> None:
    print(text, flush=True)
