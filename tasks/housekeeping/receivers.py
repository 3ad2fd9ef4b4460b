"""The receivers of a callback, as a caller names them: a Celery task, a webhook, or both."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from ...config.settings import Settings
from ...worker.errors import InvalidInput
from ...worker.store.session_records import REQUEST_TASK, REQUEST_WEBHOOK
from .task_receivers import read_task

_URL_CHARS: Final = 2_048
# Visible ASCII only: no line break gets into a header, and no look-alike digit into an address.
_URL: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


def read_receivers(
    settings: Settings,
    *,
    on_complete: object = None,
    webhook: str | None = None,
    on_request: object = None,
    request_webhook: str | None = None,
) -> dict[str, Any] | None:
    """Check the receivers of a callback and give them as they are stored; None when there is none.

    Args:
        settings: They name our own queues, which no callback is sent to.
        on_complete: Name of a Celery task, or a signature; it is called with the result as keyword `result`.
        webhook: An http or https URL; the result is posted to it.
        on_request: As `on_complete`, for each request that opens, with the keyword `request`.
        request_webhook: As `webhook`, for each request that opens.
    Raises:
        InvalidInput: One of them cannot be used.
    """
    target: dict[str, Any] = {}
    for kind, field, task in (("task", "on_complete", on_complete), (REQUEST_TASK, "on_request", on_request)):
        if task is not None:
            target[kind] = read_task(task, field, settings)
    for kind, field, url in (("webhook", "webhook", webhook), (REQUEST_WEBHOOK, "request_webhook", request_webhook)):
        if url is not None:
            split_webhook(url, field)
            target[kind] = url
    return target or None


def split_webhook(webhook: object, field: str = "webhook") -> SplitResult:
    """The parts of a webhook's URL.

    Raises:
        InvalidInput: It is no http or https URL, or holds what a URL must not.
    """
    advice = "give an http or https URL in ASCII, such as https://example.com/hooks/7."
    if not isinstance(webhook, str):
        raise InvalidInput(field, type(webhook), advice)
    if len(webhook) > _URL_CHARS or not _URL.fullmatch(webhook):
        raise InvalidInput(field, webhook, f"{advice} It may have {_URL_CHARS} characters, and no blanks.")
    try:
        parts = urlsplit(webhook)
        is_usable = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.hostname or "") and parts.port != 0
    except ValueError as error:
        raise InvalidInput(field, webhook, f"{error}; {advice}") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(field, parts.hostname, "leave credentials out of it: it is stored; the signature proves us.")
    if not is_usable:
        raise InvalidInput(field, webhook, advice)
    return parts
