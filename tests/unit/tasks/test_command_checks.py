"""Remote control messages: those of Celery and Flower pass, and what hangs, bursts or redirects a worker does not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.consumer.command_checks import LARGEST_COMMAND_BYTES, CommandChecks
from celery_agents.tasks.consumer.message_checks import InvalidMessage

CHECKS = CommandChecks(create_app(Settings.build()))
REPLIES = {"exchange": "reply.celery-agents.pidbox", "routing_key": "1234"}


def command(headers: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    body = {"method": "ping", "arguments": {}, "destination": None, "pattern": None, "matcher": None, **parts}
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(), "content-type": "application/json",
        "content-encoding": "utf-8", "headers": {"clock": 3, "expires": 17.5, **(headers or {})},
        "properties": {"body_encoding": "base64", "delivery_info": {}, "delivery_tag": "x"},
    }  # fmt: skip


def test_commands_of_celery_and_flower_pass() -> None:
    CHECKS.check(command())
    CHECKS.check(command(reply_to=REPLIES, ticket="7", destination=["celery@w"]))
    CHECKS.check(command(method="revoke", arguments={"task_id": ["a.1"], "terminate": True, "signal": "SIGTERM"}))
    assert CHECKS.is_mailbox("/0.celery-agents.pidbox")
    assert CHECKS.is_mailbox("celery-agents.pidbox"), "an app may have no prefix"
    assert not CHECKS.is_mailbox("/0.celery-agents.events/worker.heartbeat")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("compression", command({"compression": "application/x-gzip"})),
        ("pattern", command(pattern="(a+)+$", matcher="pcre")),
        ("matcher", command(matcher="glob")),
        ("clock", command({"clock": 10**30})),
        ("clock", command({"clock": "x"})),
        ("clock", command({"clock": True})),
        ("method", command(method=7)),
        ("arguments", command(arguments=[])),
        ("destination", command(destination="celery@w")),
        ("destination", command(destination=[{}])),
        ("ticket", command(ticket={})),
        ("reply_to", command(reply_to="x")),
        ("reply_to", command(reply_to={"exchange": "celery_agents.steps", "routing_key": "celery_agents.steps"})),
        ("reply_to", command(reply_to={"exchange": "", "routing_key": "celery"})),
        ("reply_to", command(reply_to={"exchange": "reply.celery-agents.pidbox", "routing_key": []})),
        ("content type", {**command(), "content-type": "application/x-python-serialize"}),
        ("larger", command(arguments={"x": "y" * LARGEST_COMMAND_BYTES})),
        ("a text of", command(method="revoke", arguments={"task_id": "x" * 1_001})),
        ("a text of", command(method="revoke", arguments={"task_id": ["a.1", "x" * 1_001]})),
        ("a text of", command(method="hello", arguments={"from_node": "w", "revoked": {"x" * 1_001: 1}})),
        ("a text of", command(method="revoke_by_stamped_headers", arguments={"headers": {"x" * 1_001: ["y"]}})),
        ("a text of", command(method="x" * 1_001)),
        ("a text of", command(destination=["x" * 1_001])),
        ("a text of", command(reply_to={**REPLIES, "routing_key": "x" * 1_001})),
        ("no object", {**command(), "body": base64.b64encode(b"[]").decode()}),
        ("cannot be read", {**command(), "body": base64.b64encode(b"{").decode()}),
        ("cannot be read", {**command(), "body": base64.b64encode(b"[" * 9_000).decode()}),
        ("more than 10000 JSON values", {**command(), "body": base64.b64encode(b"[" * 50_000).decode()}),
    ],
)
def test_a_command_that_celery_should_not_read_is_refused(name: str, message: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match=name):
        CHECKS.check(message)
