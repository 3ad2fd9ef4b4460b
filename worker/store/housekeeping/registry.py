"""The registry: what workers tell each other, clients and operators about themselves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, cast

from .. import fields
from ..context import StoreContext
from ..database import Command
from ..keys import AGENTS, WORKERS

# The fields of an entry, with the value of those that it lacks.
_WORKER: Final[Mapping[str, Any]] = {
    "seen": 0, "host": "", "pid": 0, "pool": "", "slots": 0, "running": 0, "abandoned": 0, "draining": False,
    "agents": {}, "missing": [],
}  # fmt: skip
_AGENT: Final[Mapping[str, Any]] = {"seen": 0, "hash": ""}


class WorkerRegistry:
    """Workers that are alive and the agents they offer."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def register(self, worker: str, facts: Mapping[str, Any], agents: Mapping[str, str]) -> None:
        """Tell that a worker lives, what it can do and which agents it offers.

        Args:
            facts: JSON values; `missing` names undocumented attributes of libraries that were not as expected.
            agents: Definition hashes by name.
        """
        (now,) = self._context.database.pipeline("now", [self._context.clock.now()])
        seen = self._context.clock.milliseconds(now)
        entry = fields.to_json({**facts, "agents": agents, "seen": seen})
        commands: list[Command] = [("HSET", WORKERS, worker, entry)]
        if agents:
            words = [w for name, h in agents.items() for w in (name, fields.to_json({"hash": h, "seen": seen}))]
            commands.append(("HSET", AGENTS, *words))
        self._context.database.pipeline("register", commands)

    def unregister(self, worker: str) -> None:
        """Tell that a worker has gone."""
        self._context.database.pipeline("unregister", [("HDEL", WORKERS, worker)])

    def workers(self) -> dict[str, dict[str, Any]]:
        """Facts of the workers that were heard from lately, by name."""
        return _read_workers(self._context)[0]

    def agents(self) -> dict[str, dict[str, Any]]:
        """Agents that were ever registered, with definition hash and last seen (Redis ms)."""
        (flat,) = self._context.database.pipeline("registry.agents", [("HGETALL", AGENTS)])
        return _parse_facts(fields.pairs(flat), _AGENT)


def worker_name(host: str, pid: int) -> str:
    """A name that no other worker has, not even after a restart with the same pid."""
    return f"{host}-{pid}-{uuid.uuid4().hex[:8]}"


def forget_silent_workers(context: StoreContext) -> None:
    """Take workers out of the registry that were not heard from for `agents_seen_seconds`."""
    _, silent = _read_workers(context)
    if silent:
        context.database.pipeline("registry.forget", [("HDEL", WORKERS, *silent)])


def _read_workers(context: StoreContext) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Workers heard from lately, and the names of all others. It writes nothing: users who look may not write."""
    now_reply, flat = context.database.pipeline("registry", [context.clock.now(), ("HGETALL", WORKERS)])
    oldest = context.clock.milliseconds(now_reply) - round(context.settings.agents_seen_seconds * 1000)
    found = fields.pairs(flat)
    lately = {name: facts for name, facts in _parse_facts(found, _WORKER).items() if facts["seen"] >= oldest}
    return lately, [name for name in found if name not in lately]


def _parse_facts(entries: Mapping[str, bytes], defaults: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Parse entries of the registry, with the default for each value that is missing or of another type.

    An entry that cannot be read has all defaults, and keeps nobody from reading the others.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        try:
            parsed: Any = json.loads(entry)
        except (ValueError, RecursionError):
            parsed = None
        facts = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
        lacking = {key: value for key, value in defaults.items() if type(facts.get(key)) is not type(value)}
        found[name] = facts | lacking
    return found
