"""The command `serve`: the HTTP interface."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from .options import RedisUrl, settings_for


def serve(
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to listen; default: CELERY_AGENTS_HTTP_ADDRESS, 127.0.0.1:8080."),
    ] = None,
    redis_url: RedisUrl = None,
) -> None:
    """Serve the HTTP interface for other languages and browsers. Any number of processes may serve the same Redis.

    Beyond this machine callers need a token: CELERY_AGENTS_HTTP_TOKEN_SECRETS=<token>:<scope>+<scope>, of the scopes
    submit, read, answer, stop and admin.

    \b
    Examples:
      celery-agents serve
      curl http://127.0.0.1:8080/v1/agents
    """
    from ...config.logs import configure_logging
    from ...worker.errors import MissingExtra
    from ...worker.known_secrets import redact_known, remember_secrets

    settings = settings_for(redis_url, http_address=address)
    try:
        from ..http.server import serve as serve_http
    except ModuleNotFoundError as error:
        raise MissingExtra("http", "celery-agents serve") from error
    remember_secrets(settings.secrets)
    logging.basicConfig(format="[%(asctime)s: %(levelname)s] %(message)s")
    configure_logging(settings, redact=redact_known, everybody=True)
    serve_http(settings, lambda url: print(f"celery-agents serves {url}, described at {url}/openapi.json", flush=True))
