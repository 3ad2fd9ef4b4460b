"""A Celery app whose broker and configuration come from the settings alone.

Celery reads `CELERY_BROKER_URL`, `CELERY_RESULT_BACKEND`, `CELERY_LOADER` and `CELERY_CONFIG_MODULE`, and its command
line also `APP`, `BROKER_URL` and others. With `DJANGO_SETTINGS_MODULE` it imports that Django project into every app.
They belong to the service around us, not to our app: a broker that differs from the store leaves every job waiting. The
variables stay set, because tools may read them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from celery import Celery
from celery.loaders.app import AppLoader
from kombu import Connection

_DISABLED: Final = "disabled"
_RABBITMQ: Final = ("amqp", "pyamqp")
# A RabbitMQ with an alarm reads no more from who publishes: without an end, the next call waits for its reply for ever.
_PUBLISHING_SECONDS: Final = {"read_timeout": 10, "write_timeout": 10}


class ExplicitLoader(AppLoader):
    """A loader that reads no configuration module."""

    def read_configuration(self, env: str = "CELERY_CONFIG_MODULE") -> dict[str, Any]:
        """Return an empty configuration: everything is set on the app."""
        del env
        return {}


class OwnApp(Celery):
    """A Celery app that ignores Celery's environment variables.

    Args:
        main: Name of the app.
        broker_url: Broker to connect to, in kombu's spelling, whatever the environment says.
    """

    backend_cls = _DISABLED

    def __init__(self, main: str, *, broker_url: str) -> None:
        self._broker_url = broker_url
        # Celery's only fixup is Django's. It expects the loader's name as a text, and imports the project's settings.
        super().__init__(main, set_as_current=False, loader=ExplicitLoader, fixups=[])

    def connection_for_read(self, url: str | None = None, **options: Any) -> Connection:
        """Create a connection that consumes; None connects to the broker of the settings."""
        return super().connection_for_read(url or self._broker_url, **options)

    def connection_for_write(self, url: str | None = None, **options: Any) -> Connection:
        """Create a connection that publishes; None connects to the broker of the settings."""
        chosen = url or self._broker_url
        if chosen.startswith(_RABBITMQ):
            options["transport_options"] = {**_PUBLISHING_SECONDS, **(options.get("transport_options") or {})}
        return super().connection_for_write(chosen, **options)

    def connection(self, hostname: str | None = None, **options: Any) -> Connection:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Create a connection that publishes; None connects to the broker of the settings."""
        return super().connection(hostname or self._broker_url, **options)


def run_celery_command(app: Celery, arguments: Sequence[str]) -> int:
    """Run a command of Celery's command line with an app, and take no option from the environment.

    Args:
        arguments: The command's name and its options.

    Returns:
        Exit code of the command. `Celery.worker_main` does the same and drops it.
    """
    from celery.bin.celery import celery as celery_command
    from click import Abort

    app_option, *_ = celery_command.params
    for option in celery_command.params:
        option.envvar = None
    app_option.default = app
    # A person's wish that is no option of Celery alone (https://no-color.org); any text turns colors off.
    colors = ["--no-color"] if os.environ.get("NO_COLOR") else []
    try:
        return int(celery_command.main(args=[*colors, *arguments], standalone_mode=False) or 0)
    except Abort:  # click's name of Ctrl-C
        raise KeyboardInterrupt from None
