"""URLs of a Redis: their schemes, and what a URL of Sentinels says. Imports no redis, since the settings ask too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

ONE_SERVER: Final = ("redis://", "rediss://", "unix://")
SENTINELS: Final = ("redis+sentinel://", "rediss+sentinel://")
EXAMPLE: Final = "redis+sentinel://host-1:26379,host-2,host-3/mymaster/0"

SENTINEL_SECONDS: Final = 1.0
"""A Sentinel that takes longer to answer is passed over."""

_SENTINEL_PORT: Final = 26_379
_SYNONYMS: Final = {"valkey": "redis", "valkeys": "rediss"}


def canonical_url(url: str) -> str:
    """Write the schemes of Valkey as those of Redis, which it speaks: kombu and redis-py know no others."""
    scheme, separator, rest = url.partition("://")
    name, plus, kind = scheme.partition("+")
    return f"{_SYNONYMS.get(name, name)}{plus}{kind}{separator}{rest}"


def uses_sentinels(url: str) -> bool:
    """Whether a URL names Sentinels, which know where the primary is."""
    return url.startswith(SENTINELS)


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
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        name, _, database = parts.path.strip("/").partition("/")
        if not name:
            raise ValueError(f"the name of the primary is missing behind the Sentinels; write it like {EXAMPLE}")
        if database and not database.isdigit():
            raise ValueError(f"{database!r} is no number of a database; write it like {EXAMPLE}")
        query = dict(parse_qsl(parts.query))
        username, password = query.pop("sentinel_username", None), query.pop("sentinel_password", None)
        is_tls = parts.scheme.startswith("rediss")
        options = f"?{urlencode(query)}" if query else ""
        return cls(
            sentinels=tuple(_read_host(host) for host in hosts.split(",")),
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


def _read_host(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, 0
    if not host or port == 0:
        raise ValueError(f"{text!r} is no address of a Sentinel; write it like {EXAMPLE}")
    return host, port or _SENTINEL_PORT
