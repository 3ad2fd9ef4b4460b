"""The registry: what workers tell each other, clients and operators about themselves."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from pydantic import ValidationError

from ....config.settings import GROUP_MARK
from ...errors import StoreUnavailable
from ...moments import LAST_MS
from ...state.execution.budget import ExecutionBudget
from .. import fields
from ..context import StoreContext, StorePart
from ..database import Command
from ..flow.reservations import ALIVE_MS

# The fields of an entry, with the value of those that it lacks.
_WORKER: Final[Mapping[str, Any]] = {
    "seen": 0, "version": "", "schema": 0, "host": "", "pid": 0,
    "pool": "", "prefetch": 0, "slots": 0, "running": 0, "abandoned": 0,
    "draining": False, "lease_ms": 0, "agents": {}, "missing": [], "webhooks": True, "queues": [""],
    "agent_queues": {}, "group": "", "models": [], "groups": [], "concurrency": [], "schedules": [],
    "refused": {}, "problems": [], "tools": {}, "turned": 0.0, "took": 0.0,
}  # fmt: skip
_AGENT: Final[Mapping[str, Any]] = {"seen": 0, "hash": "", "queue": "", "budget": {}}


class WorkerRegistry(StorePart):
    """Workers that are alive and the agents they offer."""

    def register(self, worker: str, facts: Mapping[str, Any], agents: Mapping[str, str]) -> bool:
        """Store that a worker lives, what it can do and which agents it offers.

        Args:
            facts: JSON values; `version` is the build of the worker, `schema` the newest stored form of a state that it
                reads, `prefetch` counts the messages that the worker takes before it has slots for them,
                `missing` names undocumented attributes of libraries that were not as expected, `queues` the queues that
                the worker takes ("" is the common one), `agent_queues` those of agents with a queue of
                their own, `agent_budgets` the limits of agents that have some, `group` the queue of its worker group,
                `tools` what is odd about those of MCP servers, `models` and `groups` the ids of the models of its
                agents, and their provider groups, `schedules` the names of those of its agents.
            agents: Definition hashes by name.
        Returns:
            Nothing was known of the worker: it begins, or the store has lost what it had.
        """
        seen = self._context.now_ms()
        entry = fields.to_json({**facts, "agents": agents, "seen": seen})
        # An emptied store gets its layout back before another process chooses one.
        fleet, layout = self._context.fleet, self._context.layout.text(len(self._context.shards))
        commands: list[Command] = [("GET", fleet.shards), ("SET", fleet.shards, layout, "NX")]
        commands.append(("HSET", fleet.workers, worker, entry))
        if fleet.is_apart:
            commands.append(("ZADD", fleet.alive, "XX", seen + ALIVE_MS, worker))
        if agents:
            queues, budgets = facts.get("agent_queues", {}), facts.get("agent_budgets", {})
            commands.append(("HSET", fleet.agents))
            for name, digest in agents.items():
                more = {"queue": queues[name]} if queues.get(name) else {}
                more |= {"budget": budgets[name]} if budgets.get(name) else {}
                commands[-1] += (name, fields.to_json({"hash": digest, "seen": seen, **more}))
        stored, _, added, *_ = self._context.database.pipeline("register", commands)
        self._context.layout.note(stored)
        return bool(added)

    def unregister(self, worker: str) -> None:
        """Remove the entry of a worker that has gone."""
        self._context.database.pipeline("unregister", [("HDEL", self._context.fleet.workers, worker)])

    def workers(self) -> dict[str, dict[str, Any]]:
        """Facts of the workers that were heard from lately, by name."""
        return _read_workers(self._context)[0]

    def agents(self) -> dict[str, dict[str, Any]]:
        """Agents that were ever registered, with definition hash and last seen (Redis ms)."""
        (flat,) = self._context.database.pipeline("registry.agents", [("HGETALL", self._context.fleet.agents)])
        return _parse_facts(fields.named_pairs(flat), _AGENT)

    def queue_of(self, agent: str) -> str | None:
        """Name of the queue of an agent, as the last worker has registered it; None: no worker ever has."""
        (entry,) = self._context.database.pipeline("registry.agent", [("HGET", self._context.fleet.agents, agent)])
        return None if entry is None else _parse_facts({agent: entry}, _AGENT)[agent]["queue"]

    def budget_of(self, agent: str) -> ExecutionBudget | None:
        """The limits of an agent, as the last worker has registered them; None: it has none, or they are not known."""
        (entry,) = self._context.database.pipeline("registry.agent", [("HGET", self._context.fleet.agents, agent)])
        found = {} if entry is None else _parse_facts({agent: entry}, _AGENT)[agent]
        limits = cast("dict[str, Any]", found.get("budget", {}))
        try:
            return ExecutionBudget.from_dict(limits) if limits else None
        except ValidationError:
            return None

    def queue_for_new(self, agent: str) -> str | None:
        """Name of the queue for the first step of a session; None: no worker has ever registered the agent.

        That is the agent's own queue. Where it has none, it is the common one, or the queue of a worker group when
        only workers of this group offer the agent: from the common queue, others would take the step and pass it on.
        """
        context = self._context
        reads = [context.clock.now(), ("HGETALL", context.fleet.workers), ("HGET", context.fleet.agents, agent)]
        now, flat, entry = context.database.pipeline("registry.queue", reads)
        if entry is None:
            return None
        own = _parse_facts({agent: entry}, _AGENT)[agent]["queue"]
        return own or _only_group(_heard_lately(context, now, flat)[0], agent)

    def offers(self) -> dict[str, tuple[str, ...]]:
        """The agents that live workers offer, each with the queues that these workers take, the preferred one first."""
        return offered_queues(self.workers())


def offered_queues(workers: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The agents that workers offer, each with the queues that these workers take.

    The agent's own queue comes first, then the common one; a draining worker counts where there is no other.

    Args:
        workers: Facts by name, as `WorkerRegistry.workers` gives them.
    """
    found: dict[str, dict[str, None]] = {}
    for facts in sorted(workers.values(), key=lambda facts: bool(facts["draining"])):
        for agent in facts["agents"]:
            own = facts["agent_queues"].get(agent, "")
            ordered = sorted(facts["queues"], key=lambda queue: (queue != own, queue.startswith(GROUP_MARK)))
            found.setdefault(agent, {}).update(dict.fromkeys(ordered))
    return {agent: tuple(queues) for agent, queues in found.items() if queues}


def worker_name(host: str, pid: int) -> str:
    """A name that no other worker has, not even after a restart with the same pid."""
    return f"{host}-{pid}-{uuid.uuid4().hex[:8]}"


def forget_silent_workers(context: StoreContext) -> None:
    """Take workers out of the registry that were not heard from for `agents_seen_seconds`."""
    _, silent = _read_workers(context)
    if silent:
        context.database.pipeline("registry.forget", [("HDEL", context.fleet.workers, *silent)])


def _read_workers(context: StoreContext) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Workers heard from lately, and the names of all others. It writes nothing: users who look may not write."""
    reads = [context.clock.now(), ("HGETALL", context.fleet.workers)]
    return _heard_lately(context, *context.database.pipeline("registry", reads))


def _heard_lately(context: StoreContext, now_reply: Any, flat: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
    oldest = context.clock.milliseconds(now_reply) - round(context.settings.agents_seen_seconds * 1000)
    found = fields.named_pairs(flat)
    lately = {name: facts for name, facts in _parse_facts(found, _WORKER).items() if facts["seen"] >= oldest}
    return lately, [name for name in found if name not in lately]


def _only_group(workers: Mapping[str, Mapping[str, Any]], agent: str) -> str:
    """The queue of the one worker group that offers an agent, while others take the common queue; else ""."""
    taking = [facts for facts in workers.values() if "" in facts["queues"] and not facts["draining"]]
    offering = {
        facts["group"] if facts["group"] in facts["queues"] else "" for facts in taking if agent in facts["agents"]
    }
    others = any(agent not in facts["agents"] for facts in taking)
    return offering.pop() if others and len(offering) == 1 else ""


def _parse_facts(entries: Mapping[str, bytes], defaults: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Parse entries of the registry, with the default for each value that is missing or of another type.

    An entry that cannot be read has all defaults, and does not hide the others.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        try:
            parsed: Any = json.loads(entry)
        except (ValueError, RecursionError):
            parsed = None
        facts = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
        found[name] = facts | {key: _read_value(facts.get(key), default) for key, default in defaults.items()}
        if "agents" in defaults:
            found[name]["agents"] = _read_agents(found[name]["agents"])
    return found


def _read_value(value: Any, default: Any) -> Any:
    """Take a value of an entry, of a list the names; where it is of another type than its default, that."""
    if isinstance(default, list):
        return [each for each in cast("list[Any]", value if isinstance(value, list) else default) if _is_like(each, "")]
    return value if _is_like(value, default) else default


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value of an entry has the type of its default, and is finite as a number and Unicode as a text."""
    if isinstance(default, float):
        return type(value) in (int, float) and 0 <= value <= LAST_MS
    if type(default) is int:
        return type(value) is int and abs(value) <= LAST_MS
    return type(value) is type(default) and (not isinstance(value, str) or fields.is_text(value))


def _read_agents(agents: Mapping[str, Any]) -> dict[str, str]:
    """Take the definition hashes of those names that are names."""
    return {name: stored for name, stored in agents.items() if _is_like(name, "") and _is_like(stored, "")}


# An agent moves to another queue with a new version of its workers, and the sweep moves what was submitted meanwhile.
_CACHE_SECONDS: Final = 5.0


class AgentQueues:
    """Remembers for some seconds which queue an agent has. Safe between threads."""

    def __init__(self, registry: Callable[[], WorkerRegistry], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._monotonic = monotonic
        self._found: dict[str, tuple[str, float]] = {}

    def queue_of(self, agent: str) -> str | None:
        """Name of the queue for a new session of an agent, as `WorkerRegistry.queue_for_new` tells it.

        An agent that was registered once keeps its queue, even when the registry has been emptied since.
        """
        now = self._monotonic()
        known = self._found.get(agent)
        if known is not None and now - known[1] < _CACHE_SECONDS:
            return known[0]
        try:
            queue = self._registry().queue_for_new(agent)
        except StoreUnavailable:  # of a cluster: the session may be on another node
            queue = None
            if known is None:
                raise
        if queue is None and known is not None:
            queue = known[0]
        if queue is not None:
            self._found[agent] = (queue, now)
        return queue

    def describe_unknown(self, agent: str) -> str:
        """A sentence for the caller who hands a job to an agent that no worker has registered."""
        others = ", ".join(sorted(self._registry().agents())) or "none"
        return (
            f"no worker has registered agent {agent!r} (registered: {others}); the job waits until one does. "
            "If the name is wrong, stop the session"
        )
