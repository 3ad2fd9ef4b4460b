"""How a store is laid out: its number of shards, and whether entries of its lists are packed.

The first process stores it, as `64 packed`. The number stays for the life of the store. A store of a version that did
not pack has the number alone, until an operator runs `celery-agents upgrade-data`.
"""

from __future__ import annotations

from typing import Final

from ..errors import ConfigurationError, StateUnreadable, StoreForbidden
from . import fields
from .database import Command, Database, Reply
from .keys import FleetKeys, ShardKeys, shard_keys

NEW: Final = 64
"""Shards of a new store: enough for every cluster, and nearly as cheap as one."""

PACKED: Final = " packed"
"""Ends the layout of a store whose entries are packed."""

_SHOWN: Final = 20


class Layout:
    """The layout of one store, as this process knows it.

    Attributes:
        shards: The keys of each shard, by number; none before they were read.
        packs: Entries are written packed; see `packing`. Such a store is refused by builds that cannot read them.
    """

    __slots__ = ("packs", "shards")

    def __init__(self) -> None:
        self.shards: tuple[ShardKeys, ...] = ()
        self.packs = False

    def text(self, shards: int) -> str:
        """The layout with this number of shards, as the store holds it."""
        return f"{shards}{PACKED if self.packs else ''}"

    def read(self, database: Database, fleet: FleetKeys, wanted: int | None) -> None:
        """Read the layout of the store, and store one where none is stored.

        Args:
            fleet: The keys of the fleet, of which `shards` holds the layout.
            wanted: The number of shards of the settings. None: the stored one, or `NEW`.
        Raises:
            ConfigurationError: Another number is stored, or none that can be read: sessions would be looked for in the
                wrong place. Or the only server is a node of a cluster, which a client would notice too late: whether a
                session's slots are of that node is a matter of chance.
        """
        found = _read(database, fleet, wanted)
        number = found.removesuffix(PACKED)
        if wanted is not None and number != str(wanted):
            raise ConfigurationError(
                f"CELERY_AGENTS_SHARDS={wanted}, but this Redis holds sessions in {number[:_SHOWN]!r} shards; set it "
                "to that, or use an empty Redis"
            )
        if not number.isdecimal() or not 1 <= int(number) <= 1024:
            raise ConfigurationError(
                f"the key {fleet.shards} holds {found[:_SHOWN]!r}, which is no number of shards; SET it to their "
                "number: each shard has a key ca:{number}:sessions"
            )
        if len(self.shards) != int(number):
            self.shards = shard_keys(int(number))
        self.packs = found != number

    def note(self, stored: Reply) -> None:
        """Note a layout that was read: an operator may have upgraded the store."""
        self.packs = self.packs or fields.any_text(stored).endswith(PACKED)


def _read(database: Database, fleet: FleetKeys, wanted: int | None) -> str:
    """Read the stored layout; a new store gets one."""
    key, reads = fleet.shards, list[Command]()
    if not fleet.is_apart:
        reads.append(("EXISTS", key, shard_keys(1)[0].due))  # in two slots, which no node of a cluster allows
    try:
        stored, *_ = database.pipeline("shards", [("GET", key), *reads])
    except StateUnreadable as error:
        raise ConfigurationError(
            f"the key {key} holds another type than a string: somebody else wrote to it. DEL {key} and set "
            f"CELERY_AGENTS_SHARDS to the number of shards, of which each has a key ca:{{number}}:sessions; the next "
            "worker writes it again"
        ) from error
    return fields.name(_store(database, key, wanted) if stored is None else stored)


def _store(database: Database, key: str, wanted: int | None) -> Reply:
    """Store the layout of a new store; a user who may not write leaves that to the first worker."""
    layout = f"{NEW if wanted is None else wanted}{PACKED}"
    writes: list[Command] = [("SET", key, layout, "NX"), ("GET", key)]
    try:
        return database.pipeline("shards.first", writes)[1]
    except StoreForbidden:
        return layout.encode()
