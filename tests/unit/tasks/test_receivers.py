"""The receivers of a callback are checked at submit, and a webhook's URL again before each call."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.tasks.housekeeping.receivers import read_receivers, split_webhook
from celery_agents.worker.errors import InvalidInput

REFUSED = [
    "ftp://example.com/x", "example.com/x", "http://", "http:///x", "//example.com", "http://example.com:0/",
    "http://example.com:99999/", "http://example.com:x/", "http://user:pw@example.com/", "http://user@example.com/",
    "http://example.com/\r\nX-Forged: 1", "http://example.com/ HTTP/1.1\r\nHost: other", "http://example.com/\tx",
    "http://exam ple.com/", "http://①②⑦.0.0.1/", "http://example.com/é", "http://a\\@127.0.0.1/", "http://[::1", "",
    "http://example.com/" + "x" * 2048, 7, None, ["http://example.com"], "http://exa\x00mple.com/", "http://a%41.com/",
]  # fmt: skip


@pytest.mark.parametrize("webhook", REFUSED)
def test_a_url_that_is_none_or_forges_a_header_is_refused(webhook: Any) -> None:
    with pytest.raises(InvalidInput, match="webhook"):
        split_webhook(webhook)


@pytest.mark.parametrize(
    "webhook", ["https://example.com", "http://example.com:8080/a?b=c#d", "https://[2001:db8::1]:8443/x"]
)
def test_an_ordinary_url_is_taken_as_it_is(webhook: str) -> None:
    assert read_receivers(None, webhook) == {"webhook": webhook}


def test_a_signature_of_any_size_does_not_get_into_a_session() -> None:
    with pytest.raises(InvalidInput, match="on_complete"):
        read_receivers({"task": "their.task", "args": ["x" * 20_000]}, None)
