"""Connections for kombu's transport of Sentinels, which takes the word of the first Sentinel and keeps a connection."""

from __future__ import annotations

import time
from typing import Any, Final

from redis.exceptions import RedisError
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from .pools import Sentinels, begin_verified

# A former primary that is back takes writes for ten seconds or more, until the Sentinels demote it.
_TRUSTED_SECONDS: Final = 1.0
_SETTING: Final = "CELERY_AGENTS_BROKER_URL, or in CELERY_AGENTS_REDIS_URL where that is the broker"
_Connection: Final[Any] = SentinelManagedConnection
_TlsConnection: Final[Any] = SentinelManagedSSLConnection


class PrimaryConnection(_Connection):
    """A connection to the server that the newest configuration of all Sentinels names, and that says it is primary.

    Whenever a pool hands it out, but once a second at most, it looks whether that is still so.
    """

    def __init__(self, **options: Any) -> None:
        """
        Args:
            options: redis-py's.
        """
        _Connection.__init__(self, **{"redis_connect_func": begin_verified, **options})
        self._pool: Any = self.connection_pool
        self._sentinels = Sentinels.of(self._pool.sentinel_manager.sentinels, setting=_SETTING)
        self._address: tuple[str, int] | None = None
        self._asked_at = 0.0

    def connect(self) -> None:
        """Connect where there is no connection, or where it leads to a former primary; a pool calls this each time.

        Raises:
            MasterNotFoundError: There is no connection, and the Sentinels name no primary; the sentence says why.
        """
        if self._address is None:
            self._find_primary()  # kombu asks as well, and would not say what to do
        elif time.monotonic() - self._asked_at > _TRUSTED_SECONDS and self._has_moved():
            self.disconnect()
        _Connection.connect(self)

    def connect_to(self, address: tuple[str, int]) -> None:
        """Connect to the primary, whatever address the first Sentinel has named."""
        del address
        named = self._find_primary()
        _Connection.connect_to(self, named)
        self._address = named

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Disconnect; the next connection may lead elsewhere."""
        self._address = None
        _Connection.disconnect(self, *args, **options)

    def _has_moved(self) -> bool:
        try:
            return self._find_primary() != self._address
        except RedisError:  # no Sentinel knows better than the server itself
            return False

    def _find_primary(self) -> tuple[str, int]:
        self._asked_at = time.monotonic()
        return self._sentinels.discover_master(self._pool.service_name)


class PrimaryTlsConnection(PrimaryConnection, _TlsConnection):
    """The same with TLS."""
