"""The end of a run as AG-UI tells it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.state import ExecutionStatus, InferenceUsage
from celery_agents.worker.store.session_records import Result

events = pytest.importorskip("celery_agents.tasks.http.agui_events")


def usage_told(usage: InferenceUsage) -> dict[str, Any]:
    result = Result(
        session_id="s", execution_id="e", status=ExecutionStatus.COMPLETED, final_response="done", output=None,
        stop_reason=None, stop_message="", usage=usage.to_dict(), cost=None, errors=(), operation_id=None, retries=0,
        step_count=1,
    )  # fmt: skip
    (told,) = events.run_ended("thread", "run", result).usage
    return told.model_dump(exclude_none=True)


def test_the_end_of_a_run_tells_its_tokens_as_the_protocol_counts_them() -> None:
    """Input and output are the whole; cache and reasoning are parts of these."""
    assert usage_told(InferenceUsage(input=10, output=4, cache_write=200, cache_read=3_000, reasoning=50)) == {
        "input_tokens": 3_210, "output_tokens": 54, "total_tokens": 3_264, "reasoning_tokens": 50,
        "cached_input_tokens": 3_000, "cache_write_input_tokens": 200,
    }  # fmt: skip


def test_counts_that_javascript_cannot_hold_are_the_largest_it_can() -> None:
    assert usage_told(InferenceUsage(input=2**63 - 1, cache_read=5))["total_tokens"] == 2**53 - 1
