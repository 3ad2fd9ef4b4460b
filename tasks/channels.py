"""Subclasses of kombu's channels to a Redis, for an app's own connections."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from kombu.connection import ConnectionPool

from ..worker.store.redis.primary_connections import PrimaryConnection, PrimaryTlsConnection

_REDIS: Final = "redis"


def subclass_channels(app: Any, subclass: Callable[[Any], Any]) -> None:
    """Let the connections to a Redis that an app makes from now on have channels of a subclass of kombu's.

    Args:
        subclass: Makes a class of the one that kombu has.
    """

    @cache
    def subclass_transport(transport: Any) -> Any:
        return type(transport.__name__, (transport,), {"Channel": subclass(transport.Channel)})

    stock = app.amqp.Connection

    def get_transport_cls(connection: Any) -> Any:
        transport = stock.get_transport_cls(connection)
        return subclass_transport(transport) if transport.driver_type == _REDIS else transport

    class Pool(ConnectionPool):
        def new(self) -> Any:
            connection: Any = super().new()  # of a class of kombu's own
            connection.get_transport_cls = partial(get_transport_cls, connection)
            return connection

    def make_pool(connection: Any, limit: int | None = None, **options: Any) -> Any:
        return Pool(connection, limit, **options)

    changed: dict[str, Any] = {"get_transport_cls": get_transport_cls, "Pool": make_pool}
    app.amqp.Connection = type(stock.__name__, (stock,), changed)


def lead_to_primary(stock: Any) -> Any:
    """Return a subclass of a channel that finds the primary by Sentinels, as the connections of the store do."""
    connections: dict[str, Any] = {"connection_class": PrimaryConnection, "connection_class_ssl": PrimaryTlsConnection}
    return type(stock.__name__, (stock,), connections)
