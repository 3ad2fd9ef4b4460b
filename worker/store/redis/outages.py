"""Answers by which a Redis says that it is away: nothing was done, and a later try may succeed.

A failover brings most of them. redis-py has classes for some, and a script of Redis 6.2 puts each into the text of its
own error, so the text decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ClusterError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as ConnectionLost

from ....config.redis_urls import CLUSTER_EXAMPLE, EXAMPLE
from ...errors import ConfigurationError, StoreForbidden
from ..database import Reply, SlotAway, SlotMoved

_TO_PRIMARY: Final = "CELERY_AGENTS_REDIS_URL leads to a replica; name the primary, or Sentinels that know it"

ADVICE: Final[Mapping[str, str]] = {
    "READONLY": _TO_PRIMARY,
    "NOREPLICAS": "fewer replicas follow than min-replicas-to-write asks for; start them, or lower it",
    "MASTERDOWN": f"its primary is away; {_TO_PRIMARY}",
    "LOADING": "it loads its data and answers when that is done",
    "UNBLOCKED": "it has become a replica",
    "MISCONF": "it cannot write to its disk; look at the disk and at its log",
    "max number of clients reached": "its table of clients is full; raise maxclients, or end clients",
}
"""What Redis says, each with what is wrong and what to do."""

TLS_ADVICE: Final[Mapping[str, str]] = {
    "CERTIFICATE_VERIFY_FAILED": "ssl_ca_certs in its URL has to name who vouches for its certificate",
    "CERTIFICATE_REQUIRED": "it asks for a certificate: name yours by ssl_certfile and ssl_keyfile in its URL",
}
"""What OpenSSL says of a connection, each with what to do."""

REFUSALS: Final[tuple[type[Exception], ...]] = (ResponseError, ClusterError)
"""Errors of redis-py that such an answer may be, apart from lost connections."""

_SAID: Final = re.compile(rf"(?:^|[\s:-])({'|'.join(ADVICE)})\b")
# redis-py takes the first word away from the errors of these classes.
_CLASSES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (ReadOnlyError, "READONLY"),
    (MasterDownError, "MASTERDOWN"),
    (BusyLoadingError, "LOADING"),
)


def find_slot(error: Exception) -> SlotAway | None:
    """Tell whether an error of a node says that it does not serve a slot now; None: it says something else."""
    # A node that was emptied and has left the cluster goes on running, and knows no other node.
    if isinstance(error, MovedError) or (isinstance(error, ClusterDownError) and "not served" in str(error)):
        return SlotMoved(f"a slot of the cluster has moved to another node ({error})")
    if isinstance(error, (AskError, TryAgainError)):
        return SlotAway("a slot of the cluster is moving to another node; its sessions go on when it is there")
    if isinstance(error, ClusterDownError) and not isinstance(error, MasterDownError):
        return SlotAway(f"some slots of the cluster have no primary ({error})")
    return None


def has_moved(reply: Reply) -> bool:
    """Whether a node has done nothing, because another one serves the slot."""
    return isinstance(reply, Exception) and isinstance(find_slot(reply), SlotMoved)


NODE_OF_CLUSTER: Final = (
    "CELERY_AGENTS_REDIS_URL names one server, which is a node of a Redis Cluster; write it like "
    f"{CLUSTER_EXAMPLE}, and set CELERY_AGENTS_BROKER_URL to a Redis or RabbitMQ of its own"
)
SENTINEL: Final = (
    "CELERY_AGENTS_REDIS_URL names one server, which is a Sentinel and holds no data; write it like "
    f"{EXAMPLE}, where mymaster is the name of the primary"
)
# Every Redis has these commands, and a Sentinel has none of them.
_NOT_OF_SENTINELS: Final = re.compile(
    r"unknown command ['`](GET|SET|EXISTS|TIME|SELECT|HGET|HMGET|HGETALL|ZRANGE|MULTI|WATCH)['`]", re.IGNORECASE
)


def find_wrong_url(error: BaseException) -> ConfigurationError | None:
    """Tell whether an error of what should be one server comes of another kind of server; None: it does not."""
    if isinstance(error, (SlotAway, ClusterCrossSlotError)):
        return ConfigurationError(NODE_OF_CLUSTER)
    if isinstance(error, (StoreForbidden, ResponseError)) and _NOT_OF_SENTINELS.search(str(error)):
        return ConfigurationError(SENTINEL)
    return None


class RedisIsAway(ConnectionLost):
    """A Redis has said that it is away, so its connection is of no use: the primary may be another server by now."""


def find_outage(error: Exception) -> RedisIsAway | None:
    """Tell whether an error that Redis answered says that it is away; None: it says something else."""
    code = next((code for kind, code in _CLASSES if isinstance(error, kind)), None)
    if code is None and (said := _SAID.search(str(error))) is not None:
        code = said[1]
    if code is None:
        return None
    text = str(error) if code in str(error) else f"{code} {error}"
    return RedisIsAway(f"{text} ({ADVICE[code]})")
