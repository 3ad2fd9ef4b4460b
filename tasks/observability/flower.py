"""Run Flower in this process; beyond loopback only with a password."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from ...config.brokers import is_redis
from ...config.settings import Settings
from ...worker.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from celery import Celery

# Our tasks have no positional arguments, so their column is left out.
_COLUMNS: Final = "name,uuid,state,result,kwargs,received,runtime,worker"

# Flower would read these before its arguments. A service of Kubernetes called flower sets FLOWER_PORT=tcp://…, and the
# configuration file of the current folder may be another service's.
_OUR_OPTIONS: Final = ("FLOWER_ADDRESS", "FLOWER_PORT", "FLOWER_TASKS_COLUMNS", "FLOWER_CONF", "FLOWER_UNIX_SOCKET")


def run_flower(settings: Settings, *, address: str, port: int, basic_auth: str | None) -> None:
    """Run Flower until it receives SIGTERM or Ctrl-C.

    Args:
        address: Interface to listen on. Beyond loopback it needs credentials.
        basic_auth: `user:password`, several with commas between them; None: no login.

    Raises:
        MissingExtra: Flower is not installed.
        ConfigurationError: The address is open without credentials, the credentials are no pair, or the port is taken.
    """
    if importlib.util.find_spec("flower") is None:
        raise MissingExtra("flower", "celery-agents flower")
    check_exposure(address, basic_auth)
    _check_port(address, port)
    from ..own_app import run_celery_command
    from .event_checks import check_events

    check_events()
    for name in _OUR_OPTIONS:
        os.environ.pop(name, None)
    if basic_auth:
        os.environ["FLOWER_BASIC_AUTH"] = basic_auth  # arguments are visible to everybody on the machine
    options = [f"--address={address}", f"--port={port}", f"--tasks_columns={_COLUMNS}", f"--conf={os.devnull}"]
    run_celery_command(flower_app(settings), ["flower", *options])


def flower_app(settings: Settings) -> Celery:
    """Create the Celery app of Flower, whose Redis user runs no scripts.

    It acknowledges nothing. kombu would look for unacknowledged messages all the same, and unlock by a script.
    """
    from ..app import create_app
    from ..channels import subclass_channels
    from ..consumer.internals import without_binding_scripts

    app = create_app(settings)
    conf: Any = app.conf
    if is_redis(settings.broker):
        conf.broker_transport_options = {**conf.broker_transport_options, "ack_emulation": False}
        subclass_channels(app, without_binding_scripts)
    return app


def check_exposure(address: str, basic_auth: str | None) -> None:
    """Refuse to show agents' work to a network without a password.

    Raises:
        ConfigurationError: The address is open without credentials, or the credentials are no pair.
    """
    pairs = [] if basic_auth is None else basic_auth.split(",")
    if any(not all(pair.partition(":")[::2]) for pair in pairs):
        raise ConfigurationError("FLOWER_BASIC_AUTH must be user:password, several with commas between them")
    if not pairs and not is_loopback(address):
        raise ConfigurationError(
            f"Flower on {address!r} would show every prompt and answer to everybody who reaches it: set "
            "FLOWER_BASIC_AUTH=user:password, or leave --address at 127.0.0.1"
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address."""
    if address == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _check_port(address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        raise ConfigurationError(
            f"Flower cannot listen on {address} port {port}: {error.strerror}; choose another with --port"
        ) from error
