"""Pools of redis-py's connections, to one server or to the server that Sentinels name as primary.

redis-py's own retries are off: after a lost reply they would do something twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from redis import connection
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from ....config.redis_urls import SENTINEL_SECONDS, SentinelUrl, uses_sentinels
from ...errors import ConfigurationError
from .outages import RedisIsAway

# redis-py's classes are not typed far enough for a strict check.
# Each with the value that holds anyway, which a URL may say.
_OWN_OPTIONS: Final = {
    "protocol": "2", "encoding": "utf-8", "encoding_errors": "strict", "decode_responses": "", "parser_class": "",
    "retry": "", "retry_on_error": "",
}  # fmt: skip
# OpenSSL does not say which of them it has not found.
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_UNKNOWN_OPTION: Final = re.compile(r"unexpected keyword argument '(\w+)'")
_TIME_LIMITS: Final = ("socket_timeout", "socket_connect_timeout")
_LONGEST_SECONDS: Final = 86_400.0
_ConnectionPool: Final[Any] = ConnectionPool
_Sentinel: Final[Any] = Sentinel
# A host that is gone lets each look at its Sentinel take a second.
_AWAY_SECONDS: Final = 5.0
_SentinelConnectionPool: Final[Any] = SentinelConnectionPool
_connection: Final[Any] = connection


def make_pool(url: str, *, timeout_seconds: float, **options: Any) -> Any:
    """Make a pool of redis-py; nothing is sent yet.

    Args:
        url: As the setting `redis_url` has it.
        timeout_seconds: To connect, and for an answer.
        options: redis-py's, for each connection.
    Raises:
        ConfigurationError: The URL cannot be read.
    """
    # A Unix socket knows no keepalive, and redis-py refuses the option there.
    keepalive: dict[str, Any] = {} if url.startswith("unix://") else {"socket_keepalive": True}
    options = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "health_check_interval": 0,
        "protocol": 2,
        **keepalive,
        **options,
    }
    try:
        if uses_sentinels(url):
            pool = _make_sentinel_pool(SentinelUrl.parse(url), options)
        else:
            _parse_url(url)
            pool = _ConnectionPool.from_url(url, retry=Retry(NoBackoff(), 0), **options)
        pool.connection_class(**pool.connection_kwargs)  # looks at the options
    except (ValueError, TypeError, RedisError) as error:
        unknown = _UNKNOWN_OPTION.search(str(error))
        if unknown:
            error = ValueError(f"{unknown[1]} is no option of {urlsplit(url).scheme}://; those of TLS need rediss://")
        raise ConfigurationError(f"redis_url cannot be read: {error}. Write it like redis://host:6379/0.") from None
    return pool


def _parse_url(url: str) -> dict[str, Any]:
    """redis-py's options of a URL.

    Raises:
        ValueError: It is none, a file of it is missing, or an option would change what Redis answers, or how often.
    """
    given: dict[str, Any] = _connection.parse_url(url)
    if own := sorted(name for name in _OWN_OPTIONS & given.keys() if str(given[name]) != _OWN_OPTIONS[name]):
        raise ValueError(f"leave out {', '.join(own)}: this package chooses the form of answers and the retries itself")
    for name in _TIME_LIMITS:
        if not 0 < given.get(name, 1) <= _LONGEST_SECONDS:
            raise ValueError(f"{name} must be more than 0 and at most {_LONGEST_SECONDS:.0f} s")
    for name in _FILES:
        if (path := given.get(name)) and not os.access(path, os.R_OK):
            raise ValueError(f"{name} names {path}, which is not there, or which this user may not read")
    return given


def _make_sentinel_pool(url: SentinelUrl, options: dict[str, Any]) -> Any:
    given = _parse_url(url.server)
    given.pop("connection_class", None)
    return PrimaryPool(
        url.primary,
        make_sentinels(url),
        redis_connect_func=begin_verified,
        retry=Retry(NoBackoff(), 0),
        ssl=url.is_tls,
        **{**options, **given},
    )


def make_sentinels(url: SentinelUrl) -> Sentinels:
    """Make clients of all Sentinels of a URL."""
    tls = {name: value for name, value in _connection.parse_url(url.server).items() if name.startswith("ssl_")}
    options = {
        "socket_timeout": SENTINEL_SECONDS, "username": url.username, "password": url.password,
        "retry": None, "protocol": 2, **({"ssl": True, **tls} if url.is_tls else {}),
    }  # fmt: skip
    return Sentinels(url.sentinels, options)


class Sentinels(_Sentinel):
    """Sentinels, all of which are asked: one that lags behind still names a former primary that is back.

    Attributes:
        setting: Where their addresses come from.
    """

    setting = "CELERY_AGENTS_REDIS_URL"

    def __init__(self, places: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> None:
        """
        Args:
            places: Host and port of each.
            options: redis-py's, for the connections to them.
        """
        _Sentinel.__init__(self, places, sentinel_kwargs=options)
        self._away: dict[str, float] = {}

    @classmethod
    def of(cls, clients: Sequence[Any], *, setting: str) -> Sentinels:
        """Ask Sentinels by clients that are there.

        Args:
            setting: Where their addresses come from, for sentences.
        """
        made: Any = cls((), {})
        made.sentinels, made.setting = clients, setting
        return made

    def discover_master(self, service_name: str) -> Any:
        """Find the address of the primary by the newest configuration that a Sentinel has.

        Raises:
            MasterNotFoundError: None of them names one, or they watch different servers; the sentence says what to set.
        """
        answers = [*self.ask_all(patient=False)] or [*self.ask_all()]
        states = [found for _, answer in answers if not isinstance(answer, str) and (found := answer.get(service_name))]
        usable = [state for state in states if self.check_master_state(state, service_name)]
        if not usable:
            raise MasterNotFoundError(_explain(service_name, answers, self.setting))
        newest = max(usable, key=lambda state: state["config-epoch"])
        for other in usable:  # those of the same age have no failover between them
            if other["config-epoch"] == newest["config-epoch"] and not _is_same_server(other, newest):
                raise MasterNotFoundError(_describe_disagreement(newest, other, service_name, self.setting))
        return newest["ip"], newest["port"]

    def find_servers(self, service_name: str) -> set[tuple[str, int]]:
        """Find host and port of each server, primary or replica, that a Sentinel knows; none where none answers."""
        found: set[tuple[str, int]] = set()
        answers = dict(self.ask_all(patient=False))
        for client in self.sentinels:
            answer = answers.get(_address(client), "")
            if isinstance(answer, str) or service_name not in answer:
                continue
            with contextlib.suppress(RedisError):
                states = answer[service_name], *client.sentinel_slaves(service_name)
                found |= {(each["ip"], int(each["port"])) for each in states}
        return found

    def ask_all(self, *, patient: bool = True) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Ask each Sentinel what it watches: its address, with the states by name, or with why it does not answer.

        Args:
            patient: Ask those too that did not answer a short time ago.
        """
        for client in self.sentinels:
            address = _address(client)
            if not patient and time.monotonic() < self._away.get(address, 0.0):
                continue
            try:
                yield address, client.sentinel_masters()
            except RedisError as error:
                self._away[address] = time.monotonic() + _AWAY_SECONDS
                yield address, f"{type(error).__name__}: {error}"


def _address(client: Any) -> str:
    place = client.get_connection_kwargs()
    return f"{place['host']}:{place['port']}"


def _is_same_server(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two Sentinels mean one server, perhaps by other names: one address, or one run id."""
    is_one_place = (one["ip"], one["port"]) == (other["ip"], other["port"])
    return is_one_place or ("runid" in one and one["runid"] == other.get("runid"))


def _describe_disagreement(one: Mapping[str, Any], other: Mapping[str, Any], name: str, setting: str) -> str:
    places = " and ".join(f"{state['ip']}:{state['port']}" for state in (one, other))
    return (
        f"the Sentinels name {places} as primary of {name!r}: they watch different servers under this name; name the "
        f"Sentinels of one installation in {setting}"
    )


def _explain(name: str, answers: list[tuple[str, dict[str, Any] | str]], setting: str) -> str:
    """Why no Sentinel names the primary, and what to set."""
    known = [states for _, states in answers if not isinstance(states, str)]
    if not known:
        away = "; ".join(f"{address}: {why}" for address, why in answers)
        return f"no Sentinel answers ({away}); start them, or correct their addresses in {setting}"
    if not any(name in states for states in known):
        watched = ", ".join(sorted({other for states in known for other in states})) or "nothing"
        return f"the Sentinels watch {watched} and no {name!r}; correct the name in {setting}"
    return f"the Sentinels see no primary of {name!r} that is up; a failover is under way, or too few of them agree"


class PrimaryPool(_SentinelConnectionPool):
    """Connections to the server that the Sentinels name as primary."""

    def owns_connection(self, connection: Any) -> bool:
        """Take every connection of this process back: before 8.1, redis-py counts for ever those that it does not."""
        return _ConnectionPool.owns_connection(self, connection)


def begin_verified(opened: Any) -> None:
    """Begin a connection: the Sentinels may name a server that is no primary any more, or not yet.

    Raises:
        RedisIsAway: It is none.
    """
    opened.on_connect()
    opened.send_command("ROLE")
    try:
        role = opened.read_response()[0]
    except NoPermissionError:  # a replica is known by its READONLY then
        return
    if role != b"master":
        named = f"{opened.host}:{opened.port}"
        raise RedisIsAway(f"{named}, which the Sentinels name, is no primary; a failover is under way")
