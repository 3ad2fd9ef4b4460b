"""Agents, workers, and whether the interface works."""

from __future__ import annotations

from starlette.responses import Response

from ... import __version__
from ..client.verbs import Scope
from . import replies
from .endpoints import Call, endpoint, send


@endpoint("GET", "/v1/health", Scope.READ, replies.HealthReply)
async def check_health(call: Call) -> Response:
    """Tell whether the interface and its Redis answer."""
    await call.client.run(lambda client: client.store.housekeeping.now_ms())
    return send({"ok": True, "version": __version__})
