"""What `model_request` says that a model saw is what its provider was sent: by real workers, some of them killed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from celery_agents import Approve, Job
from celery_agents.worker.state import AgentState
from celery_agents.worker.state.past.seen_requests import ModelRequest

from support.lab import Lab
from support.provider import Provider, calls, tool_call
from support.seen_agents import PROMPT, PROVIDER_URL, TOOL
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

KEY = "sk-not-a-key-0123456789abcdef"
Seen = dict[str, Any]


@pytest.fixture
def lab(tmp_path: Path, provider: Provider) -> Iterator[Lab]:
    env = {PROVIDER_URL: provider.base_url, "OPENAI_API_KEY": KEY}
    with Lab(tmp_path / "lab", agents="support.seen_agents", env=env) as started:
        yield started


def _call(call: Seen) -> list[Any]:
    return [call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])]


def _plain(schema: Any) -> Any:
    """A schema without what the provider's client adds or drops in its own dialect."""
    if isinstance(schema, dict):
        own = {name: value for name, value in schema.items() if name not in ("title", "additionalProperties")}
        return {name: _plain(value) for name, value in own.items()}
    return schema


def sent(body: Seen) -> Seen:
    """A request as the provider got it, in the words of this test."""
    functions = [each["function"] for each in body.get("tools", ())]
    return {
        "systems": _texts(each["content"] for each in body["messages"] if each["role"] == "system"),
        "others": [
            [
                each["role"],
                each.get("content") or "",
                [_call(call) for call in each.get("tool_calls", ())],
                each.get("tool_call_id"),
            ]
            for each in body["messages"]
            if each["role"] != "system"
        ],
        "tools": {each["name"]: [each.get("description", ""), _plain(each["parameters"])] for each in functions},
        "temperature": body.get("temperature"),
        "model": body["model"],
    }


def _texts(systems: Iterable[str | None]) -> list[str]:
    """The texts of instructions: a provider's client joins them, or puts them behind those among the messages."""
    return sorted(text for each in systems if each is not None for text in each.split("\n\n"))


def seen(request: ModelRequest) -> Seen:
    """The same of what a client reads."""
    assert request.messages is not None
    assert request.tools is not None
    assert request.not_kept == ()
    messages = [each.to_dict() for each in request.messages]
    return {
        "systems": _texts([request.system_prompt, *(each["content"] for each in messages if each["role"] == "system")]),
        "others": [
            [
                each["role"],
                each.get("content", ""),
                [[call["id"], call["name"], call["args"]] for call in each.get("tool_calls", ())],
                each.get("tool_call_id"),
            ]
            for each in messages
            if each["role"] != "system"
        ],
        "tools": {each["name"]: [each["description"], _plain(each["parameters"])] for each in request.tools},
        "temperature": request.settings.get("temperature"),
        "model": request.model,
    }


def check(lab: Lab, job: Job, bodies: Sequence[Seen], execution: str = "") -> list[ModelRequest]:
    """Compare the steps of an execution with the requests that the provider got for them."""
    address = execution + ":" if execution else ""
    requests = [lab.client.model_request(job.session_id, step=f"{address}{n}") for n in range(1, len(bodies) + 1)]
    for request, body in zip(requests, bodies, strict=True):
        assert seen(request) == sent(body)
    return requests


def bodies(provider: Provider, since: int = 0) -> list[Seen]:
    """The requests of steps: those of summaries have no tools. Of a turn that was asked twice, the last one counts."""
    found = [entry["request"] for entry in provider.ledger()[since:] if entry["request"].get("tools")]
    return list({json.dumps(each["messages"]): each for each in found}.values())


def test_each_step_of_an_own_agent_whose_worker_is_killed(lab: Lab, provider: Provider) -> None:
    provider.plan(*[calls(tool_call("note", {"text": f"n{n}"})) for n in range(6)], "done", latency=0.1)
    worker = lab.worker()
    job = lab.client.submit("seller", "sell")
    wait_until(lambda: len(provider.ledger()) >= 3, "three requests")
    worker.kill()
    lab.worker()
    assert job.result(timeout=60).final_response == "done"
    requests = check(lab, job, bodies(provider))
    assert len(requests) == 7
    assert [each.notes for each in requests[:2]] == [(), ()]
    assert dict(requests[0].settings) == {"temperature": 0.25}, "headers can hold keys"


def test_a_step_that_another_worker_commits_says_so(lab: Lab, provider: Provider) -> None:
    provider.plan(calls(tool_call("note", {"text": "n"})), "done")
    job = lab.client.submit("seller", "sell")
    doomed = lab.worker(wait=False, crash="c3:1:1", **{PROMPT: "You sell hats."})
    doomed.wait(60)
    lab.worker()
    assert job.result(timeout=60).final_response == "done"
    first, second = (lab.client.model_request(job.session_id, step=n) for n in (1, 2))
    assert (first.system_prompt, second.system_prompt) == ("You sell shoes.", "You sell shoes.")
    assert "The worker that had asked was lost" in first.notes[0]
    assert second.notes == ()
    asked, again = bodies(provider)
    assert seen(first)["others"] == sent(asked)["others"]
    assert seen(second) == sent(again)


def test_over_a_changed_deployment_and_with_a_handoff(lab: Lab, provider: Provider) -> None:
    provider.plan(calls(tool_call("note", {"text": "n"})), "first")
    worker = lab.worker()
    job = lab.client.submit("seller", "sell")
    assert job.result(timeout=60).final_response == "first"
    worker.end()
    before = bodies(provider)
    lab.worker(**{PROMPT: "You sell hats.", TOOL: "search"})
    provider.plan("unused", calls(tool_call("transfer_to_desk")), calls(tool_call("note", {"text": "bill"})), "billed")
    again = lab.client.send_message(job.session_id, "what about my bill?")
    assert again.result(timeout=60).final_response == "billed"
    requests = check(lab, again, bodies(provider, len(before)))
    assert [each.agent for each in requests] == ["seller", "desk", "desk"]
    assert requests[0].system_prompt == "You sell hats."
    assert "search" in seen(requests[0])["tools"]
    earlier = check(lab, job, before, job.execution_id)
    assert earlier[1].system_prompt == "You sell shoes."
    assert "find" in seen(earlier[1])["tools"]


@pytest.mark.parametrize("agent", ["compact", "reminded"])
def test_messages_that_a_summary_or_a_hook_has_chosen(lab: Lab, provider: Provider, agent: str) -> None:
    provider.plan(function="support.seen_agents:answer_at_length")
    lab.worker()
    job = lab.client.submit(agent, "write a lot")
    assert job.result(timeout=90).final_response == "done"
    requests = check(lab, job, bodies(provider))
    systems = [sum(message.role.value == "system" for message in each.messages or ()) for each in requests]
    assert systems[-1] == 1
    assert agent == "reminded" or len(requests[-1].messages or ()) < 10
    state = lab.client.state(job.session_id, at=3)
    assert isinstance(state, AgentState), "the state of a step is exact, too"


def test_a_step_that_waits_for_a_person_keeps_what_its_first_worker_has_asked(lab: Lab, provider: Provider) -> None:
    provider.plan(calls(tool_call("pay", {"dollars": 3})), "paid")
    worker = lab.worker()
    job = lab.client.submit("seller", "pay")
    wait_until(lambda: list(lab.client.requests(job.session_id)), "the question")
    worker.end()
    lab.worker(**{PROMPT: "You sell hats."})
    (found,) = lab.client.requests(job.session_id)
    lab.client.answer(job.session_id, {found.request.id: Approve()})
    assert job.result(timeout=60).final_response == "paid"
    requests = check(lab, job, bodies(provider))
    assert [each.system_prompt for each in requests] == ["You sell shoes.", "You sell hats."]
    assert requests[0].notes == ()


def test_each_step_of_an_agent_of_pydantic_ai(lab: Lab, provider: Provider) -> None:
    provider.plan(
        calls(tool_call("look_up", {"title": "one"})),
        calls(tool_call("look_up", {"title": "unknown"}), tool_call("look_up", {"title": "two"})),
        calls(tool_call("final_result", {"pairs": 0})),
        calls(tool_call("final_result", {"pairs": 2})),
        latency=0.1,
    )
    worker = lab.worker()
    job = lab.client.submit("library", "lend")
    wait_until(lambda: len(provider.ledger()) >= 2, "two requests")
    worker.kill()
    lab.worker()
    assert json.loads(str(job.result(timeout=60).final_response)) == {"pairs": 2}
    requests = check(lab, job, bodies(provider))
    assert len(requests) == 4
    assert requests[0].system_prompt == "You keep books.\n\nYou sell shoes.\n\nIt is request 1."
    assert "final_result" in seen(requests[0])["tools"]


def test_a_history_processor_of_pydantic_ai_shows(lab: Lab, provider: Provider) -> None:
    provider.plan(
        function="support.seen_agents:answer_forgetful",
    )
    lab.worker()
    job = lab.client.submit("forgetful", "look all up")
    assert job.result(timeout=60).final_response == "done"
    requests = check(lab, job, bodies(provider))
    assert len(requests) == 5
    assert max(len(each.messages or ()) for each in requests) == 3
