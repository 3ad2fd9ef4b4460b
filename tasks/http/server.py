"""Serves the HTTP interface by uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from ...config.settings import Settings, SettingsError
from ..client.client import AgentClient
from .access import is_loopback, read_tokens
from .app import create_http_app

_MAX_HEADER_BYTES: Final = 32_768
_KEEP_ALIVE_SECONDS: Final = 30
_GRACE_SECONDS: Final = 5


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
    listening = _listen(host, int(port))
    config = uvicorn.Config(
        create_http_app(AgentClient(settings=settings)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        http="h11",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        lifespan="on",
    )
    with listening:
        address, bound = listening.getsockname()[:2]
        name = f"[{address}]" if ":" in address else address
        on_ready(f"http://{name}:{bound}")
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        advice = "Choose another one with --address, or end what listens there."
        raise SettingsError(f"http_address {host}:{port} cannot be used: {error.strerror or error}. {advice}") from None
