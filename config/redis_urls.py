"""URLs of a Redis: their schemes, and what a URL of Sentinels or of a cluster says.

Imports no redis, since the settings ask too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from .urls import hide_password, is_host, split_url

ONE_SERVER: Final = ("redis://", "rediss://", "unix://")
SENTINELS: Final = ("redis+sentinel://", "rediss+sentinel://")
CLUSTERS: Final = ("redis+cluster://", "rediss+cluster://")
CLUSTER_EXAMPLE: Final = "redis+cluster://host-1:7000,host-2:7000,host-3:7000"
EXAMPLE: Final = "redis+sentinel://host-1:26379,host-2,host-3/mymaster/0"

SENTINEL_SECONDS: Final = 1.0
"""A Sentinel that takes longer to answer is passed over."""

_SENTINEL_PORT: Final = 26_379
_PORT: Final = 6_379
_SYNONYMS: Final = {"valkey": "redis", "valkeys": "rediss"}
_ENCODED: Final = "a password is written with %2F, %3F, %23, %5B and %5D in place of / ? # [ and ]"


def canonical_url(url: str) -> str:
    """Write the schemes of Valkey as those of Redis, which it speaks: kombu and redis-py know no others."""
    scheme, separator, rest = url.partition("://")
    name, plus, kind = scheme.partition("+")
    return f"{_SYNONYMS.get(name, name)}{plus}{kind}{separator}{rest}"


def uses_sentinels(url: str) -> bool:
    """Whether a URL names Sentinels, which know where the primary is."""
    return url.startswith(SENTINELS)


def uses_cluster(url: str) -> bool:
    """Whether a URL names nodes of a cluster."""
    return url.startswith(CLUSTERS)


def check_url(url: str) -> None:
    """Check the URL of a store or of a broker, with the scheme that `canonical_url` gives.

    Raises:
        ValueError: It cannot be used; the sentence repeats no secret.
    """
    if "://" not in url:
        raise ValueError(f"{hide_password(url)!r} is not a URL; write it like redis://host:6379/0")
    user, at, _ = split_url(url).netloc.rpartition("@")
    if not {*user}.isdisjoint("[]"):  # libraries look for an address between them
        raise ValueError(_ENCODED)
    try:
        _check_hosts(url)
    except ValueError:
        if not at and "@" in url:  # where the password ends the hosts, a part of it is taken for a port
            raise ValueError(_ENCODED) from None
        raise


def _check_hosts(url: str) -> None:
    if uses_sentinels(url):
        SentinelUrl.parse(url)
    elif uses_cluster(url):
        ClusterUrl.parse(url)
    elif url.startswith("sentinel://"):
        raise ValueError(f"sentinel:// does not name the primary; write it like {EXAMPLE}")
    elif (missing := _find_unusable(url)) is not None:
        raise ValueError(f"{hide_password(url)!r} has no usable {missing}; write it like redis://host:6379/0")
    elif url.startswith(("redis://", "rediss://")):
        _check_database(split_url(url).path.strip("/"), "redis://host:6379/0")


def _find_unusable(url: str) -> str | None:
    """Find what of an address is no host or no port. Semicolons separate several addresses, as for AMQP."""
    for part in url.split(";"):
        try:
            host, port = urlsplit(part).hostname, urlsplit(part).port
        except ValueError:
            return "port"
        if port == 0:
            return "port"
        if host is not None and not is_host(host):
            return "host"
    return None


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """A URL of Sentinels, in parts.

    Attributes:
        sentinels: Host and port of each.
        primary: The name under which they watch the primary, "master name" in their configuration.
        server: URL of a server without its address, for redis-py: user, password, database and options of the query.
        is_tls: TLS to servers and Sentinels.
        username, password: Those of the Sentinels; None: they ask for none.
    """

    sentinels: tuple[tuple[str, int], ...]
    primary: str
    server: str = field(repr=False)
    is_tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> SentinelUrl:
        """Parse `redis+sentinel://[user:password@]host[:port],…/name[/database][?sentinel_password=…]`.

        Raises:
            ValueError: A part is missing or wrong; the sentence repeats no secret.
        """
        parts = split_url(url)
        user, at, hosts = parts.netloc.rpartition("@")
        name, _, database = parts.path.strip("/").partition("/")
        if not name:
            raise ValueError(f"the name of the primary is missing behind the Sentinels; write it like {EXAMPLE}")
        _check_database(database, EXAMPLE)
        query = dict(parse_qsl(parts.query))
        username, password = query.pop("sentinel_username", None), query.pop("sentinel_password", None)
        is_tls = parts.scheme.startswith("rediss")
        options = f"?{urlencode(query)}" if query else ""
        return cls(
            sentinels=_read_hosts(hosts, "a Sentinel", _SENTINEL_PORT, EXAMPLE),
            primary=unquote(name),
            server=f"{'rediss' if is_tls else 'redis'}://{user}{at}/{database or 0}{options}",
            is_tls=is_tls,
            username=username,
            password=password,
        )

    @property
    def database(self) -> int:
        """Number of the database."""
        return int(urlsplit(self.server).path.strip("/"))

    def is_same_database(self, other: SentinelUrl) -> bool:
        """Whether another URL names the same database: one common Sentinel is enough."""
        return (
            (self.primary, self.database) == (other.primary, other.database)
            and not {*self.sentinels}.isdisjoint(other.sentinels)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """A URL of a cluster, in parts.

    Attributes:
        nodes: Host and port of each node that is named; the others are found through them.
        server: URL of a server without its address, for redis-py: user, password and options of the query.
    """

    nodes: tuple[tuple[str, int], ...]
    server: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> ClusterUrl:
        """Parse `redis+cluster://[user:password@]host[:port],…[?option=…]`.

        Raises:
            ValueError: A part is wrong; the sentence repeats no secret.
        """
        parts = split_url(url)
        user, at, hosts = parts.netloc.rpartition("@")
        if parts.path.strip("/") not in ("", "0"):
            raise ValueError(f"a cluster has the database 0 alone; write it like {CLUSTER_EXAMPLE}")
        options = f"?{parts.query}" if parts.query else ""
        return cls(
            nodes=_read_hosts(hosts, "a node", _PORT, CLUSTER_EXAMPLE),
            server=f"{'rediss' if parts.scheme.startswith('rediss') else 'redis'}://{user}{at}/0{options}",
        )


def _check_database(text: str, example: str) -> None:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no number of a database; write it like {example}")


def _read_hosts(text: str, what: str, port: int, example: str) -> tuple[tuple[str, int], ...]:
    """Read the hosts of a URL, separated by commas; `port` is that of a host without one."""
    return tuple(_read_host(host, what, port, example) for host in text.split(","))


def _read_host(text: str, what: str, port: int, example: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, given = parts.hostname, parts.port
    except ValueError:
        host, given = None, 0
    if not host or given == 0 or not is_host(host):
        raise ValueError(f"{text!r} is no address of {what}; write it like {example}")
    return host, given or port
