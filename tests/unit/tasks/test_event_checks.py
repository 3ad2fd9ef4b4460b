"""Celery's events as Flower takes them: real ones pass unchanged, forged ones are dropped."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.tasks.observability.event_checks import examine_event, hide_arguments

HEARTBEAT = {
    "type": "worker-heartbeat", "hostname": "celery@machine-1.example", "utcoffset": 0, "pid": 7, "clock": 12,
    "freq": 2.0, "active": 3, "processed": 12, "loadavg": [0.1, 0.2, 0.3], "sw_ident": "py-celery", "sw_ver": "5",
    "sw_sys": "Linux", "timestamp": 1.7e9,
}  # fmt: skip
RECEIVED = {
    "type": "task-received", "hostname": "celery@m", "uuid": "e.1", "name": "celery_agents.step", "args": "()",
    "kwargs": "{}", "root_id": "e.1", "parent_id": None, "retries": 0, "eta": None, "expires": None,
    "timestamp": 1.7e9, "utcoffset": -2, "pid": 7, "clock": 9, "local_received": 1.7e9,
}  # fmt: skip
REVOKED = {"type": "task-revoked", "hostname": "h", "uuid": "e.1", "terminated": True, "signum": None, "expired": False}


@pytest.mark.parametrize("event", [HEARTBEAT, RECEIVED, REVOKED])
def test_events_of_workers_pass(event: dict[str, Any]) -> None:
    assert examine_event(event) is None
    assert hide_arguments(event) == event


@pytest.mark.parametrize("event", [None, 7, "x", [], {}, {"type": "task-received"}])
def test_what_is_no_event_is_dropped(event: object) -> None:
    assert examine_event(event)


@pytest.mark.parametrize("hostname", [{}, [], 7, None, "", "a/b", "<script>", "a b", "\ud800", "x" * 300, "a\nb"])
def test_a_forged_worker_name_is_dropped(hostname: object) -> None:
    assert "hostname" in (examine_event({**HEARTBEAT, "hostname": hostname}) or "")


@pytest.mark.parametrize("name", [name for name in RECEIVED if name not in ("type", "hostname")])
def test_a_value_of_another_type_is_dropped(name: str) -> None:
    for value in ({}, [[]], float("inf"), "\ud800"):
        assert examine_event({**RECEIVED, name: value}), f"{name}={value!r}"
    assert examine_event({**HEARTBEAT, "loadavg": ["x"]})
    assert examine_event({**HEARTBEAT, "freq": 10**400})
    assert examine_event({**HEARTBEAT, "freq": "2"})


def test_the_prompt_that_a_sender_tells_is_hidden() -> None:
    sent = {**RECEIVED, "type": "task-sent", "name": "celery_agents.submit", "kwargs": "{'message': 'the prompt'}"}
    assert "the prompt" not in str(hide_arguments(sent))
