"""Webhooks of model providers: a job has ended, and its step looks for the answer now. No more is taken from them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from ...config.settings import Settings, SettingsError
from ...worker.drivers.webhooks import PROVIDERS, verifier_of
from .endpoints import Call, endpoint
from .problems import HttpProblem
from .request_bodies import RequestBodies

_NAME: Final = "CELERY_AGENTS_PROVIDER_WEBHOOK_SECRETS"
_PREFIX: Final = "whsec_"
_SHORTEST_KEY: Final = 16
_MOST_ID_CHARS: Final = 500
_MOST_BYTES: Final = 64_000
_BYTES_OF_ALL: Final = 4_000_000
_SECONDS: Final = 10.0
_WAKING: Final = frozenset(
    {f"response.{how}" for how in ("completed", "failed", "incomplete", "cancelled")}
    | {f"batch.{how}" for how in ("completed", "failed", "expired", "cancelled")}
)


class ProviderEvent(BaseModel):
    """An event of which a provider tells. Other fields are not read."""

    type: str = Field(description="Ends of responses and batches let a step look; all others do nothing.")
    data: dict[str, Any] = Field(description="Has the `id` of the response or the batch.")


@endpoint("POST", "/v1/provider-webhooks/{provider}", None, body=ProviderEvent, is_signed=True)
async def take_provider_webhook(call: Call) -> Response:
    """Let the step whose job has ended at a model provider look for its answer; the provider's signature lets in."""
    event: ProviderEvent = call.body
    job_id = event.data.get("id")
    if event.type in _WAKING and isinstance(job_id, str) and 0 < len(job_id) <= _MOST_ID_CHARS:
        await call.client.wake_provider_job(job_id)
    return Response(status_code=204)


class Signatures:
    """Checks signatures by the secrets of the settings."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            SettingsError: `provider_webhook_secrets` cannot be read.
            MissingExtra: A provider's library is not installed.
        """
        found = read_secrets(settings.provider_webhook_secrets)
        self._verifiers = {provider: verifier_of(provider, secrets) for provider, secrets in found.items()}

    def check_of(self, request: Request) -> Callable[[bytes], None]:
        """Make what refuses the body of a webhook that its provider has not signed just now.

        Raises:
            HttpProblem: Webhooks of this provider are not taken.
        """
        verify = self._verifiers.get(request.path_params["provider"])
        if verify is None:
            detail = f"Webhooks of this provider are not taken. {_NAME} says of which they are."
            raise HttpProblem(404, "not-found", detail)

        def check(body: bytes) -> None:
            if not verify(body, request.headers):
                detail = "This is not signed by the provider, or was more than five minutes ago by the clock here."
                raise HttpProblem(401, "wrong-signature", detail)

        return check


def signed_bodies() -> RequestBodies:
    """Make the reader of bodies that anybody may send: they share a little memory of their own, for a short time."""
    return RequestBodies(_MOST_BYTES, _BYTES_OF_ALL, seconds=_SECONDS, by_settings=False)


def read_secrets(text: str | None) -> dict[str, list[str]]:
    """Read the setting `provider_webhook_secrets`: secrets by provider.

    Raises:
        SettingsError: An entry names no provider that is known, or has no secret of it. No secret is in the message.
    """
    found: dict[str, list[str]] = {}
    for number, entry in enumerate((each.strip() for each in (text or "").split(",") if each.strip()), 1):
        provider, _, secret = entry.partition("=")
        if provider not in PROVIDERS:
            known = ", ".join(PROVIDERS)
            raise SettingsError(f"{_NAME}: entry {number} is of no known provider ({known}): write openai=whsec_….")
        if not _is_secret(secret):
            raise SettingsError(f"{_NAME}: entry {number} has no secret; copy it from {provider}, with its {_PREFIX}.")
        found.setdefault(provider, []).append(secret)
    return found


def _is_secret(text: str) -> bool:
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return False
    return text.startswith(_PREFIX) and len(key) >= _SHORTEST_KEY
