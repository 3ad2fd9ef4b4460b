"""Which node of a Redis Cluster serves which slot, as the nodes tell it (CLUSTER SLOTS)."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from ....config.redis_urls import ClusterUrl
from ...errors import ConfigurationError, StoreUnavailable
from ..database import Command, Word

log = logging.getLogger(__name__)

SLOTS: Final = 16_384
NODE_SECONDS: Final = 1.0
"""A node that takes longer to tell the slots is passed over."""

# A node that did not answer is passed over for this time.
_AWAY_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.5
_KEYLESS: Final = frozenset(("TIME", "INFO", "PUBLISH", "PING", "ACL"))
_MANY_KEYS: Final = frozenset(("DEL", "EXISTS"))

Place = tuple[str, int]
"""Host and port of a node."""


def keys_of(command: Command) -> Sequence[Word]:
    """The keys that a command names; none for one that any node answers."""
    name = command[0]
    if name in _KEYLESS:
        return ()
    if name == "EVALSHA":
        return command[3 : 3 + int(command[2])]
    if name == "XREAD":
        streams = command[command.index("STREAMS") + 1 :]
        return streams[: len(streams) // 2]
    return command[1:] if name in _MANY_KEYS else command[1:2]


def slot_of(key: Word) -> int:
    """The slot of a key, which follows from its hash tag."""
    text = str(key)
    begin, end = text.find("{"), text.find("}")
    return _slot_of_tag(text[begin + 1 : end] if 0 <= begin < end - 1 else text)


@lru_cache(4096)
def _slot_of_tag(tag: str) -> int:
    return key_slot(tag.encode())


class Topology:
    """The map of a cluster's slots; safe between threads. It is read on first use, and again when it proves wrong."""

    def __init__(self, url: ClusterUrl, ask: Callable[[Place, Command], Any]) -> None:
        """
        Args:
            ask: Sends a command to a node and gives its reply.
        """
        self._named = url.nodes
        self._ask = ask
        self._lock = threading.Lock()
        self._slots: Sequence[Place | None] = ()
        self._away: dict[Place, float] = {}
        self._read_at = 0.0
        self._is_reading = False
        self.on_change: Callable[[], object] = lambda: None

    @property
    def is_known(self) -> bool:
        """Whether the map was read."""
        return bool(self._slots)

    @property
    def nodes(self) -> list[Place]:
        """The nodes that serve slots, in the order of their addresses."""
        return sorted({place for place in self._known_slots() if place is not None})

    def find(self, slot: int) -> Place | None:
        """The node that serves a slot; None: none does.

        Raises:
            ConfigurationError, StoreUnavailable: The map was never read, and cannot be; see `read`.
        """
        return self._known_slots()[slot]

    def read(self) -> None:
        """Read the map, unless another thread has just read it.

        Raises:
            StoreUnavailable: No node answers.
        """
        asked = time.monotonic()
        with self._lock:
            if self._read_at <= asked:
                self._replace(self._any_answer())

    def read_soon(self) -> None:
        """Read the map in a thread, at most twice a second: a node that does not answer may have a successor."""
        if self._is_reading or time.monotonic() - self._read_at < _PAUSE_SECONDS:
            return
        self._is_reading = True
        threading.Thread(target=self._read_aside, name="celery-agents-topology", daemon=True).start()

    def _read_aside(self) -> None:
        try:
            self.read()
        except (StoreUnavailable, ConfigurationError) as error:
            log.debug("the slots of the cluster cannot be read: %s", error)
        finally:
            self._is_reading = False

    def _known_slots(self) -> Sequence[Place | None]:
        if not self._slots:
            with self._lock:
                if not self._slots:
                    self._replace(self._first_answer())
        return self._slots

    def _replace(self, slots: Sequence[Place | None]) -> None:
        is_new, self._slots, self._read_at = slots != self._slots, slots, time.monotonic()
        if is_new:
            self.on_change()

    def _first_answer(self) -> Sequence[Place | None]:
        """Ask every node of the URL, since one that is named wrongly would be missed when it is needed.

        Raises:
            ConfigurationError: One is no node of a cluster, or slots are served by no node.
            StoreUnavailable: None of them answers.
        """
        found, troubles = list[Sequence["Place | None"]](), dict[Place, str]()
        for place, answer in self._answers(self._named):
            if isinstance(answer, ResponseError):
                raise ConfigurationError(
                    f"{_name(place)} is no node of a cluster ({answer}); correct CELERY_AGENTS_REDIS_URL, or write "
                    "redis:// for one server"
                )
            if isinstance(answer, Exception):
                troubles[place] = f"{type(answer).__name__}: {answer}"
            else:
                found.append(answer)
        if not found:
            raise _nobody_answers(troubles)
        fullest = min(found, key=lambda slots: slots.count(None))  # a node that has left the cluster knows none
        unserved = fullest.count(None)
        if unserved:
            raise ConfigurationError(
                f"{unserved} of the {SLOTS} slots of the cluster are served by no node; look at redis-cli --cluster "
                f"check {_name(self._named[0])}, and assign them with --cluster fix"
            )
        return fullest

    def _any_answer(self) -> Sequence[Place | None]:
        now, known = time.monotonic(), list({*self._named, *(place for place in self._slots if place is not None)})
        random.shuffle(known)
        troubles: dict[Place, str] = {}
        for place, answer in self._answers(sorted(known, key=lambda each: self._away.get(each, 0.0) > now)):
            if isinstance(answer, Exception):
                troubles[place] = f"{type(answer).__name__}: {answer}"
            elif any(answer):
                return answer
            else:
                troubles[place] = "it knows no slots, as a node that has left the cluster"
        raise _nobody_answers(troubles)

    def _answers(self, places: Sequence[Place]) -> Iterator[tuple[Place, Sequence[Place | None] | Exception]]:
        for place in places:
            try:
                yield place, _parse(self._ask(place, ("CLUSTER", "SLOTS")), place)
            except (RedisError, OSError) as error:
                self._away[place] = time.monotonic() + _AWAY_SECONDS
                yield place, error


def _parse(reply: Sequence[Any], asked: Place) -> Sequence[Place | None]:
    """The node of each slot; a node may name itself by no host, which is the one that was asked."""
    slots: list[Place | None] = [None] * SLOTS
    for first, last, primary, *_ in reply:
        host = (primary[0] or b"").decode()
        place = (asked[0] if host in ("", "?") else host, int(primary[1]))
        slots[first : last + 1] = [place] * (last + 1 - first)
    return slots


def _nobody_answers(troubles: Mapping[Place, str]) -> StoreUnavailable:
    told = "; ".join(f"{_name(place)}: {why}" for place, why in troubles.items())
    return StoreUnavailable(f"no node of the cluster answers ({told}); start them, or correct CELERY_AGENTS_REDIS_URL")


def _name(place: Place) -> str:
    return f"{place[0]}:{place[1]}"
