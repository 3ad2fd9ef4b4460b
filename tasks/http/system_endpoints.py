"""Agents, workers, and whether the interface works."""

from __future__ import annotations

from starlette.responses import Response

from ... import __version__
from . import replies
from .access import Scope
from .endpoints import Call, endpoint, send


@endpoint("GET", "/v1/agents", Scope.READ, replies.NamedReply)
async def list_agents(call: Call) -> Response:
    """Read the agents that workers have registered."""
    return send(await call.client.agents())


@endpoint("GET", "/v1/workers", Scope.READ, replies.NamedReply)
async def list_workers(call: Call) -> Response:
    """Read the live workers: slots, queues, agents, and whether they drain."""
    return send(await call.client.workers())


@endpoint("GET", "/v1/health", Scope.READ, replies.HealthReply)
async def check_health(call: Call) -> Response:
    """Tell whether the interface and its Redis answer."""
    await call.client.run(lambda client: client.store.housekeeping.now_ms())
    return send({"ok": True, "version": __version__})
