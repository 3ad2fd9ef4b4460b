"""Sentences about limits and pauses that may not be meant. They refuse nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...config.settings import shown_queues
from ...worker.flow.caps import SpendCap
from ...worker.flow.concurrency import ConcurrencyLimit
from ...worker.flow.values import Pause, ProviderLimit, provider_of

if TYPE_CHECKING:
    from ...worker.store.housekeeping.registry import WorkerRegistry

_MOST_NAMES: Final = 8


def find_unused(limit: ProviderLimit, workers: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Say what a limit of zero does, and that no agent of a live worker has the model or the group."""
    notes: list[str] = []
    if 0 in limit.per_minute.values():
        what = f"0 admits no request to {limit.model}; its sessions wait, without an attempt"
        notes.append(f"limit: {what}, until it is raised or removed.")
    groups = _names(workers, "groups")
    wanted = limit.group if limit.group and not limit.group.startswith("~") else None  # ~ is the digest of a key
    return (*notes, *_unknown("model", limit.model, _names(workers, "models")), *_unknown("group", wanted, groups))


def find_unnamed(limit: ConcurrencyLimit, workers: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Say what a limit of zero does, and that no agent or tool of a live worker names the limit."""
    notes: list[str] = []
    if 0 in (limit.total, *limit.per.values()):
        notes.append(f"limit: 0 lets nothing begin under {limit.name}; it waits until the limit is raised or removed.")
    return (*notes, *_unknown("concurrency", limit.name, _names(workers, "concurrency")))


def find_unused_cap(cap: SpendCap, workers: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Say what a cap of zero does, and that no live worker has its agent."""
    notes: tuple[str, ...] = ()
    if 0 in (cap.usd, *cap.values.values()):
        what = "stops at once" if cap.then == "stop" else "waits until the cap is raised or removed"
        notes = (f"cap: 0 lets no model call begin under {cap.name}; what needs one {what}.",)
    return (*notes, *_unknown("agent", cap.agent or None, _names(workers, "agents")))


def find_unknown(pause: Pause, registry: WorkerRegistry) -> tuple[str, ...]:
    """Say that no live worker has what is paused. Tools are not known here."""
    workers = registry.workers()
    models = _names(workers, "models")
    known = {
        "provider": set(map(provider_of, models)),
        "model": models,
        "agent": registry.agents().keys(),
        "queue": {name for facts in workers.values() for name in shown_queues(facts["queues"])},
    }
    return _unknown(pause.kind, pause.name, known[pause.kind]) if pause.name and pause.kind in known else ()


def find_unknown_agent(name: str, registry: WorkerRegistry) -> tuple[str, ...]:
    """Say that no live worker has an agent."""
    return _unknown("agent", name, _names(registry.workers(), "agents"))


def _unknown(kind: str, name: str | None, known: Any) -> tuple[str, ...]:
    if name is None or name in known:
        return ()
    named = sorted(known)
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    return (f"{kind}: no live worker has {name}; they have {', '.join(named[:_MOST_NAMES]) or 'none'}{more}.",)


def _names(workers: Mapping[str, Mapping[str, Any]], fact: str) -> set[str]:
    return {name for facts in workers.values() for name in facts.get(fact, ()) if isinstance(name, str)}
