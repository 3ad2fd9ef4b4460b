"""The Celery app that publishes: what clients and workers share."""

from __future__ import annotations

from typing import Final

from celery import Celery

from ..config.celery import celery_configuration
from ..config.redis_urls import uses_sentinels
from ..config.settings import Settings
from ..worker.errors import ConfigurationError
from .names import CONTROL
from .own_app import OwnApp

APP_NAME: Final = "celery_agents"
_ATTRIBUTE: Final = "celery_agents_settings"


def create_producer_app(settings: Settings) -> Celery:
    """Create a Celery app that can publish steps and control tasks; it cannot run them."""
    configuration = celery_configuration(settings)
    app = OwnApp(APP_NAME, broker_url=configuration["broker_url"])
    app.conf.update(configuration)
    # A control task that is sent by its name must go to the queue that is acknowledged.
    app.conf.task_routes = {name: {"queue": settings.control_queue} for name in CONTROL}
    attach_settings(app, settings)
    if uses_sentinels(settings.broker):
        from .channels import lead_to_primary, subclass_channels

        subclass_channels(app, lead_to_primary)
    return app


def attach_settings(app: Celery, settings: Settings) -> None:
    """Let `settings_of` find the settings with which agents were installed on an app."""
    setattr(app, _ATTRIBUTE, settings)


def settings_of(app: Celery) -> Settings:
    """Return the settings with which agents were installed on an app.

    Raises:
        ConfigurationError: The app has no agents.
    """
    settings = getattr(app, _ATTRIBUTE, None)
    if not isinstance(settings, Settings):
        raise ConfigurationError(f"app {app.main!r} has no agents: call celery_agents.install(app) first")
    return settings
