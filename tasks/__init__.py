"""Celery's side: app, tasks, worker, client, command line.

`celery -A celery_agents.tasks worker` finds the app here; it is made, from the environment, when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery import Celery

    app: Celery


def __getattr__(name: str) -> Any:
    """Make the app on first use."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..config.settings import Settings
    from .app import create_app

    made = create_app(Settings.from_environment())
    globals()["app"] = made
    return made
