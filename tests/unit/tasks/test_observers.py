"""What measures steps: it never breaks one, and all workers agree on a trace without talking to each other."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.observability.observers import Observers
from celery_agents.tasks.observability.tracing import derive_root_span_id, derive_trace_id


class Broken:
    """Raises whatever it is told."""

    def step_begun(self, run: Any) -> None:
        raise RuntimeError("out of order")


def test_nobody_is_told_where_nothing_is_measured() -> None:
    assert Observers(Settings.build()).observer is None


def test_a_measurement_that_breaks_is_logged_and_the_step_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    observers = Observers(Settings.build())
    observers._all = (cast("Any", Broken()),)
    with caplog.at_level(logging.WARNING):
        observers.step_begun(cast("Any", None))
    assert "Broken missed an event of a step: RuntimeError: out of order" in caplog.text


def test_ids_of_a_trace_follow_from_the_execution_and_its_retries() -> None:
    assert derive_trace_id("a") == derive_trace_id("a") != derive_trace_id("b")
    assert derive_root_span_id("a", 0) == derive_root_span_id("a", 0) != derive_root_span_id("a", 1)
    assert 0 < derive_trace_id("a") < 2**128
    assert 0 < derive_root_span_id("a", 0) < 2**64
