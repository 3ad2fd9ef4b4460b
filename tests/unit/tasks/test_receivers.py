"""The receivers of a callback are checked at submit, and a webhook's URL again before each call."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.housekeeping.receivers import read_receivers, split_webhook
from celery_agents.worker.errors import InvalidInput

SETTINGS = Settings.build(queue="shop.steps", control_queue="shop.control")

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
    assert read_receivers(SETTINGS, webhook=webhook) == {"webhook": webhook}


def test_a_signature_of_any_size_does_not_get_into_a_session() -> None:
    with pytest.raises(InvalidInput, match="on_complete"):
        read_receivers(SETTINGS, on_complete={"task": "their.task", "args": ["x" * 20_000]})


RESERVED = [
    "ca:{0}:due", "ca:agents", "CA:{0}:due", "ca:", "ca:{0}:s:x\nforged", "_kombu.binding.celery", "_kombu.binding_deadlines",
    "unacked", "unacked_index", "unacked_mutex", "flower.unacked", "celery.pidbox", "worker@host.celery.pidbox",
    "1234.reply.celery.pidbox", "celeryev", "celery-agents.events", "celery@w.celery-agents.pidbox", "celeryev.7", "celery-task-meta-7", "celery-taskset-meta-7", "amq.direct",
    "celery_agents.steps", "celery_agents.control", "shop.steps", "shop.control", "shop.steps.gpu", "celery\x06\x163",
    "two words", "line\nbreak", "", "q" * 256, "\ud800", 7, ["celery"], {"name": "celery"}, True,
]  # fmt: skip


@pytest.mark.parametrize("field", ["on_complete", "on_request"])
@pytest.mark.parametrize("queue", RESERVED, ids=ascii)
def test_a_queue_that_is_a_key_of_ours_or_of_the_broker_is_refused(field: str, queue: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        read_receivers(SETTINGS, **{field: {"task": "x", "options": {"queue": queue}}})


@pytest.mark.parametrize("queue", ["celery", "theirs", "shop.mails", "unack", "cache", "orders@eu", "Überweisungen"])
def test_a_queue_of_another_service_is_taken(queue: str) -> None:
    signature = {"task": "x", "args": [], "kwargs": {"ticket": 7}, "options": {"queue": queue}}
    assert read_receivers(SETTINGS, on_complete=signature) == {"task": signature}


@pytest.mark.parametrize(
    "name",
    [
        "exchange", "routing_key", "exchange_type", "serializer", "compression", "headers", "reply_to", "task_id",
        "link", "link_error", "chain", "chord", "group_id", "root_id", "parent_id", "connection", "producer", "router",
        "shadow", "eta", "declare", "delivery_mode", "retry_policy", "stamped_headers", "correlation_id", "x" * 300, "",
    ],
)  # fmt: skip
def test_an_option_that_is_not_about_the_task_alone_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="takes the options queue, priority"):
        read_receivers(SETTINGS, on_complete={"task": "x", "options": {name: None}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", -1), ("priority", 256), ("priority", True), ("priority", "9"), ("priority", 1.5),
        ("countdown", -1), ("countdown", 10**30), ("countdown", "1"), ("expires", True), ("time_limit", []),
        ("soft_time_limit", {}), ("ignore_result", 1),
    ],
)  # fmt: skip
def test_an_option_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"on_complete.options.{name}"):
        read_receivers(SETTINGS, on_complete={"task": "x", "options": {name: value}})


@pytest.mark.parametrize(
    "task",
    [
        {"task": "x", "args": "abc"}, {"task": "x", "kwargs": []}, {"task": "x", "options": "queue"}, {"task": ""},
        {"task": 7}, {}, "", "x" * 256, 7, ["x"], {"task": "x", "args": 7},
    ],
)  # fmt: skip
def test_what_is_no_signature_is_refused(task: Any) -> None:
    with pytest.raises(InvalidInput, match="on_complete"):
        read_receivers(SETTINGS, on_complete=task)
