"""The number of shards of a store: the first process stores it, and it stays for the life of the store."""

from __future__ import annotations

from typing import Final

from ..errors import ConfigurationError, StateUnreadable, StoreForbidden
from . import fields
from .database import Command, Database, Reply
from .keys import FleetKeys, shard_keys

NEW: Final = 64
"""Shards of a new store: enough for every cluster, and nearly as cheap as one."""

_SHOWN: Final = 20


def count_shards(database: Database, fleet: FleetKeys, wanted: int | None) -> int:
    """Read the number of shards of the store, and store it where none is stored.

    Args:
        fleet: The keys of the fleet, of which `shards` holds the number.
        wanted: The number of the settings. None: the stored one, or `NEW`.
    Raises:
        ConfigurationError: Another number is stored, or none that can be read: sessions would be looked for in the
            wrong place. Or the only server is a node of a cluster, which a client would notice too late: whether a
            session's slots are of that node is a matter of chance.
    """
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
    found = fields.name(_store(database, key, wanted) if stored is None else stored)
    if wanted is not None and found != str(wanted):
        raise ConfigurationError(
            f"CELERY_AGENTS_SHARDS={wanted}, but this Redis holds sessions in {found[:_SHOWN]!r} shards; set it to "
            "that, or use an empty Redis"
        )
    if not found.isdecimal() or not 1 <= int(found) <= 1024:
        raise ConfigurationError(
            f"the key {key} holds {found[:_SHOWN]!r}, which is no number of shards; SET it to their number: each "
            "shard has a key ca:{number}:sessions"
        )
    return int(found)


def _store(database: Database, key: str, wanted: int | None) -> Reply:
    """Store the number; a user who may not write leaves that to the first worker."""
    number = NEW if wanted is None else wanted
    writes: list[Command] = [("SET", key, number, "NX"), ("GET", key)]
    try:
        return database.pipeline("shards.first", writes)[1]
    except (ConfigurationError, StoreForbidden):
        return str(number).encode()
