"""Run a worker in this process."""

from __future__ import annotations

import re
import sys
from typing import Final

from ...config.logs import log_everything_as_json
from ...config.settings import Settings
from ...worker.errors import ConfigurationError
from ...worker.known_secrets import redact_known
from ..agent_modules import import_agents
from ..consumer.garbage_collection import collect_rarely, freeze_loaded_objects

# A computing thread releases the interpreter after this long, and each waiting thread asks for it that often: with
# hundreds of slots, Python's default of 5 ms costs a quarter of a core (docs/decisions/0006).
_SWITCH_SECONDS: Final = 0.02

_NAME: Final = re.compile(r"[A-Za-z0-9._%-]{1,128}(@[A-Za-z0-9._%-]{1,253})?")


def run_worker(settings: Settings, name: str | None = None) -> int:
    """Run a worker until it is told to end.

    Args:
        name: Its node name for Celery and Flower, like `worker1` or `worker1@%h`; None: Celery's default.

    Returns:
        Exit code of the process: 0 after an orderly end.

    Raises:
        ConfigurationError: An agent cannot be imported, or cannot work here: an extra or a key is missing.
    """
    if not settings.agent_modules:
        raise ConfigurationError(
            "a worker without agents can do nothing: name their modules with --agents or CELERY_AGENTS_AGENTS"
        )
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the worker's name {name!r} must be letters, digits, '.', '_', '%' or '-', like worker1@%h"
        )
    from celery.signals import setup_logging, worker_ready

    from ..app import create_app, create_worker

    if settings.log_format == "json":
        log_everything_as_json(settings, redact=redact_known)
        setup_logging.connect(_keep_logging, weak=False)
    for agent in import_agents(settings):
        agent.answering.check()
    collect_rarely()
    sys.setswitchinterval(_SWITCH_SECONDS)
    worker_ready.connect(freeze_loaded_objects, weak=False)
    worker = create_worker(create_app(settings), settings, name)
    worker.start()
    return int(worker.exitcode or 0)


def _keep_logging(**_: object) -> None:
    """Celery sets up no logging of its own where this signal has a receiver."""
