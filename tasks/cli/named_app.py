"""The existing Celery app that `celery-agents --app MODULE` names: its Redis, its broker and its queues are used."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ...worker.errors import ConfigurationError
from .views import one_line

if TYPE_CHECKING:
    from celery import Celery

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        "-A",
        metavar="MODULE",
        help="An existing Celery app with agents installed, as for celery -A: its Redis and broker are used.",
        show_default=False,
    ),
]

_NAME: Final[ContextVar[str | None]] = ContextVar("celery_agents_app", default=None)


def choose_app(name: str | None) -> None:
    """Note what `--app` names, for the command that follows; None: no app."""
    _NAME.set(name)


def chosen_app() -> Celery | None:
    """Import the app that `--app` names; None without the option.

    Raises:
        ConfigurationError: It cannot be imported.
    """
    name = _NAME.get()
    return None if name is None else import_app(name)


def refuse_app(command: str, advice: str) -> None:
    """Refuse `--app` before a command that starts processes of its own.

    Raises:
        ConfigurationError: It was given.
    """
    name = _NAME.get()
    if name is not None:
        raise ConfigurationError(f"--app {name}: {command} does not take an existing app; {advice}")


@cache
def import_app(name: str) -> Celery:
    """Import a Celery app once, as `celery -A` does, from the working folder, too.

    Raises:
        ConfigurationError: It cannot be imported.
    """
    sys.path.append(str(Path.cwd()))
    from celery import Celery
    from celery.app.utils import find_app

    try:
        found: Celery = find_app(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigurationError(f"--app {name}: it cannot be imported: {one_line(str(error))}") from error
    if not isinstance(found, Celery):  # pyright: ignore[reportUnnecessaryIsInstance] — it is whatever the name leads to
        raise ConfigurationError(f"--app {name}: it is a {type(found).__name__}, and no Celery app")
    return found
