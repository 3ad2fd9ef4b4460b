"""Importing the agents of a worker, as Celery imports the modules of an app: from the working folder, too."""

from __future__ import annotations

import sys
from pathlib import Path

from ..config.settings import Settings
from ..worker.agent import AgentRegistry


def import_agents(settings: Settings) -> AgentRegistry:
    """Import the modules that the settings name, and take their agents, as far as the worker takes their queues.

    The working folder comes first on the path while the modules are imported, and last afterwards: a `redis.py` of the
    service must not hide a module that this package imports later.

    Raises:
        ConfigurationError: A module cannot be imported or holds no agent, or no agent has a queue that the settings
            name.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return AgentRegistry.from_modules(settings.agent_modules, settings.chosen_queues)
    finally:
        if here in sys.path:
            sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)
