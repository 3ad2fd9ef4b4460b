"""Agents, workers, and whether the interface works."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ... import __version__
from . import replies
from .access import Scope
from .endpoints import Call, Endpoint, send


async def list_agents(call: Call) -> Response:
    """Read the agents that workers have registered."""
    return send(await call.client.agents())


async def list_workers(call: Call) -> Response:
    """Read the live workers: slots, queues, agents, and whether they drain."""
    return send(await call.client.workers())


async def check_health(call: Call) -> Response:
    """Tell whether the interface and its Redis answer, and which version this is."""
    await call.client.run(lambda client: client.store.housekeeping.now_ms())
    return send({"ok": True, "version": __version__})


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/v1/agents",
        scope=Scope.READ,
        handler=list_agents,
        summary="Read the agents that workers have registered.",
        replies={200: replies.NamedReply},
    ),
    Endpoint(
        method="GET",
        path="/v1/workers",
        scope=Scope.READ,
        handler=list_workers,
        summary="Read the live workers: slots, queues, agents, and whether they drain.",
        replies={200: replies.NamedReply},
    ),
    Endpoint(
        method="GET",
        path="/v1/health",
        scope=Scope.READ,
        handler=check_health,
        summary="Tell whether the interface and its Redis answer.",
        replies={200: replies.HealthReply},
    ),
)
