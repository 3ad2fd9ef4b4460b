"""A task of many steps whose conversation is compacted, against a provider whose ledger has every request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celery_agents import ExecutionBudget
from celery_agents.worker.capabilities.smart.tool_archive import find_response

from support.http_service import ServiceProcess
from support.lab import Lab
from support.long_task import CONTEXT_TOKENS, INSTRUCTED
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.provider import Provider
from support.verdict import Verdict

_CHARS_PER_TOKEN = 4


def compact(directory: Path, steps: int, *, timeout: float) -> Verdict:
    """Each request holds valid pairs and stays under the limit, and every archived result can still be fetched."""
    verdict = Verdict()
    with ServiceProcess("support.provider", directory.parent / f"{directory.name}-provider") as service:
        provider = Provider(service, "long")
        provider.plan(function="support.long_task:answer")
        env = {PROVIDER_URL: provider.base_url, KEY_NAME: "sk-test"}
        with Lab(directory, agents="support.long_task", env=env) as lab:
            lab.worker()
            lab.client.wait_for_agent("long_task")
            job = lab.client.submit("long_task", f"gather {steps} things", budget=ExecutionBudget.unlimited())
            ended = job.result(timeout=timeout)
            state = lab.client.show(job.session_id).state
        requests = [entry["request"]["messages"] for entry in provider.ledger()]
    verdict.expect(ended.final_response == "done", "end", f"it ended with {ended}")
    own = [messages for messages in requests if INSTRUCTED not in str(messages[0].get("content"))]
    summaries = len(state.smart.summaries)
    verdict.expect(len(own) == steps + 1, "requests", f"{len(own)} requests for {steps} steps")
    paid = len(requests) - len(own)
    verdict.expect(paid == summaries, "requests", f"{paid} summaries were paid for, {summaries} are kept")
    for number, messages in enumerate(own, 1):
        _check_request(number, messages, verdict)
    archived = state.smart.tool_history_archived
    for each in archived:
        found = find_response(state, str(each.id), "output")
        verdict.expect(found == each.as_message(), "archive", f"the result {each.id} is gone")
    verdict.counts.update({"requests": len(own), "summaries": summaries, "archived_results": len(archived)})
    return verdict


def _check_request(number: int, messages: Sequence[Mapping[str, Any]], verdict: Verdict) -> None:
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            is_asked = message["tool_call_id"] in open_calls
            verdict.expect(is_asked, "pairs", f"request {number}: {message['tool_call_id']} answers nothing")
            open_calls = [each for each in open_calls if each != message["tool_call_id"]]
            continue
        verdict.expect(not open_calls, "pairs", f"request {number}: {open_calls} have no result")
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    verdict.expect(not open_calls, "pairs", f"request {number}: {open_calls} have no result")
    chars = sum(len(str(message.get("content") or "")) + _arguments(message) for message in messages)
    most = _CHARS_PER_TOKEN * CONTEXT_TOKENS
    verdict.expect(chars <= most, "limit", f"request {number} has {chars} characters, more than {most}")


def _arguments(message: Mapping[str, Any]) -> int:
    return sum(len(call["function"]["arguments"]) for call in message.get("tool_calls") or ())
