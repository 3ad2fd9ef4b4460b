"""Signatures of model providers' webhooks, as their own libraries check them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..errors import MissingExtra

Verify = Callable[[bytes, Mapping[str, str]], bool]
"""Whether the headers of a body have its provider's signature, by one of the secrets and of the last five minutes."""


def _verify_openai(secrets: Sequence[str]) -> Verify:
    from openai import OpenAI

    webhooks = OpenAI(api_key="none").webhooks  # it asks nothing

    def is_signed(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
        try:
            webhooks.verify_signature(body, headers, secret=secret)
        except (ValueError, TypeError):  # a wrong one; one without a header, or with letters that no signature has
            return False
        return True

    return lambda body, headers: any(is_signed(body, headers, secret) for secret in secrets)


_VERIFIERS: Final[Mapping[str, Callable[[Sequence[str]], Verify]]] = {"openai": _verify_openai}

PROVIDERS: Final = tuple(_VERIFIERS)
"""Providers whose webhooks are understood."""


def verifier_of(provider: str, secrets: Sequence[str]) -> Verify:
    """Make what tells a provider's own webhooks from others.

    Raises:
        MissingExtra: The provider's library is not installed.
    """
    try:
        return _VERIFIERS[provider](secrets)
    except ImportError as error:
        raise MissingExtra("llm", f"CELERY_AGENTS_PROVIDER_WEBHOOK_SECRETS: {provider}") from error
