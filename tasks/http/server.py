"""Serves the HTTP interface by uvicorn."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Final

import uvicorn

from ...config.settings import Settings, SettingsError
from ..client.client import AgentClient
from .access import is_loopback, read_tokens
from .app import create_http_app
from .connections import ConnectionProtocol, count_connections

_MAX_HEADER_BYTES: Final = 32_768
_KEEP_ALIVE_SECONDS: Final = 30
_GRACE_SECONDS: Final = 5
# A thread that computes keeps the event loop waiting for so long, again and again.
_SWITCH_SECONDS: Final = 0.001
_BACKLOG: Final = 2048
# Connections that are accepted in a row, before any of them is looked at.
_ACCEPTED_TOGETHER: Final = 64


def serve(settings: Settings, on_ready: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT; open streams are ended then, and their readers come back elsewhere.

    Args:
        on_ready: Called with the URL once connections are taken.
    Raises:
        SettingsError: Others than this machine could ask without a token, or the address cannot be used.
    """
    host, _, port = settings.http_address.rpartition(":")
    host = host.strip("[]")
    if not read_tokens(settings.http_token_secrets) and not is_loopback(host):
        raise SettingsError(
            f"CELERY_AGENTS_HTTP_ADDRESS={settings.http_address}: others than this machine could ask there without a "
            "token. Set CELERY_AGENTS_HTTP_TOKEN_SECRETS=<token>:<scope>+<scope>, or listen on 127.0.0.1."
        )
    protocol = ConnectionProtocol.limited_to(count_connections(settings))
    sys.setswitchinterval(_SWITCH_SECONDS)
    listening = _listen(host, int(port))
    config = uvicorn.Config(
        create_http_app(AgentClient(settings=settings)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        http=protocol,
        ws="none",
        backlog=_ACCEPTED_TOGETHER,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        lifespan="on",
    )
    with listening:
        address, bound = listening.getsockname()[:2]
        name = f"[{address}]" if ":" in address else address
        on_ready(f"http://{name}:{bound}")
        _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn, with another number of connections that wait to be accepted than are accepted together."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        advice = "Choose another one with --address, or end what listens there."
        why = error.strerror or error
        raise SettingsError(f"the HTTP interface cannot listen on {host}:{port}: {why}. {advice}") from None
    # asyncio sets it for sockets that it opens itself. A reply is written in two pieces, and without it the second one
    # waits 40 ms for the client's acknowledgement of the first. Accepted sockets inherit it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
