"""Which broker the settings name. Imports no Celery, since probes of a worker's health ask too.

docs/code.md lists each place that asks (`Places that know the broker`); a check compares the list with the code.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from .redis_urls import ONE_SERVER, SENTINELS, SentinelUrl, uses_cluster, uses_sentinels
from .settings import Settings


def is_redis(url: str) -> bool:
    """Whether a broker URL names a Redis, or Sentinels that know where it is."""
    return url.startswith((*ONE_SERVER, *SENTINELS))


def takes_steps_itself(settings: Settings) -> bool:
    """Whether workers fetch steps over a connection of their own to one Redis, and not by Celery's consumer."""
    return is_redis(settings.broker) and ";" not in settings.broker


def shares_a_database(settings: Settings) -> bool:
    """Tell whether broker and store are the same database of the same Redis, however their URLs are spelled."""
    if settings.broker_url is None:
        return True
    if uses_cluster(settings.redis_url) or not is_redis(settings.broker_url):
        return False
    if uses_sentinels(settings.broker_url) != uses_sentinels(settings.redis_url):
        return False
    if uses_sentinels(settings.redis_url):
        return SentinelUrl.parse(settings.redis_url).is_same_database(SentinelUrl.parse(settings.broker_url))
    return _database_of(settings.broker_url) == _database_of(settings.redis_url)


def _database_of(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return ("unix", parts.path, 0, parts.query)
    (number,) = parse_qs(parts.query).get("db", [parts.path.strip("/")])[:1]
    return (parts.scheme, parts.hostname or "localhost", parts.port or 6379, number or "0")
