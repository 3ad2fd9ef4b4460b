from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.http_service import call
from support.provider import Provider, calls, tool_call
from support.wait import wait_until

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def ask(provider: Provider, *messages: Message, key: str = "sk-test", timeout: float = 10.0) -> Any:
    body = {"model": "gpt-test", "messages": list(messages) or [user("hello")], "tools": [{"type": "function"}]}
    request = urllib.request.Request(
        f"{provider.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def message_of(completion: Any) -> Message:
    return completion["choices"][0]["message"]


def echo(messages: list[Message], body: Message) -> Message:
    """A plan's function."""
    return {"content": f"{len(messages)} messages to {body['model']}"}


def test_what_was_paid_is_on_the_disk_before_it_is_answered(provider: Provider) -> None:
    for number in range(1, 11):
        completion = ask(provider, user(f"question {number}"))
        record = provider.records()[-1]
        assert record["answer"] == completion
        assert record["request"]["messages"] == [user(f"question {number}")]
        assert record["request"]["tools"] == [{"type": "function"}]
        assert (record["n"], record["billed"], record["key"]) == (number, True, "sk-test")


def test_answers_follow_the_turn_of_the_conversation_and_not_the_number_of_the_request(provider: Provider) -> None:
    provider.plan(calls(tool_call("search", {"q": "x"}), tool_call("read", "{broken")), "found")
    for _ in range(2):
        first = ask(provider, user("go"))
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        asked = message_of(first)["tool_calls"]
        assert [call["function"]["name"] for call in asked] == ["search", "read"]
        assert [call["function"]["arguments"] for call in asked] == ['{"q": "x"}', "{broken"]
        result = {"role": "tool", "tool_call_id": asked[0]["id"], "content": "y"}
        second = ask(provider, user("go"), message_of(first), result)
        assert message_of(second)["content"] == "found"
        assert second["choices"][0]["finish_reason"] == "stop"
    assert [entry["turn"] for entry in provider.paid()] == [0, 1, 0, 1]


def test_asking_again_gives_other_ids_as_real_providers_do(provider: Provider) -> None:
    provider.plan(calls(tool_call("search")))
    ids = {message_of(ask(provider))["tool_calls"][0]["id"] for _ in range(3)}
    assert len(ids) == 3


def test_rules_look_at_the_last_message(provider: Provider) -> None:
    provider.plan("else", rules=[{"role": "user", "contains": "weather", "answer": "rain"}])
    assert message_of(ask(provider, user("weather?")))["content"] == "rain"
    assert message_of(ask(provider, user("weather?"), user("time?")))["content"] == "else"


def test_a_function_may_decide(provider: Provider) -> None:
    provider.plan(function="integration.support.test_provider:echo")
    assert message_of(ask(provider, user("a"), user("b")))["content"] == "2 messages to gpt-test"


def test_usage_grows_with_the_conversation_and_may_be_planned(provider: Provider) -> None:
    provider.plan({"content": "a", "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}})
    assert ask(provider)["usage"]["total_tokens"] == 9
    provider.plan("ok")
    short, long = ask(provider, user("x")), ask(provider, user("x" * 4000))
    assert long["usage"]["prompt_tokens"] - short["usage"]["prompt_tokens"] >= 900


def test_reasoning_and_finish_reason_are_passed_on(provider: Provider) -> None:
    provider.plan({"content": "a", "reasoning": "because", "finish_reason": "length"})
    completion = ask(provider)
    assert message_of(completion)["reasoning_content"] == "because"
    assert completion["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("code", [400, 401, 429, 500, 529])
def test_a_status_is_refused_unpaid_and_may_name_a_time_to_wait(provider: Provider, code: int) -> None:
    provider.plan("ok", faults=[{"fault": "status", "code": code, "retry_after": 2, "on": 1}])
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(provider)
    assert (refused.value.code, refused.value.headers["Retry-After"]) == (code, "2")
    assert message_of(ask(provider))["content"] == "ok"
    assert [entry["billed"] for entry in provider.ledger()] == [False, True]


def test_a_refusal_may_echo_the_key(provider: Provider) -> None:
    provider.plan(faults=[{"fault": "status", "code": 401, "echo_key": True}])
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(provider, key="sk-very-secret")
    assert b"sk-very-secret" in refused.value.read()


def test_a_cut_answer_was_paid(provider: Provider) -> None:
    provider.plan("ok", faults=[{"fault": "cut", "on": 1}])
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        ask(provider)
    assert [entry["fault"]["fault"] for entry in provider.paid()] == ["cut"]
    ask(provider)


def test_a_truncated_answer_ends_early(provider: Provider) -> None:
    provider.plan("ok" * 100, faults=[{"fault": "truncate"}])
    with pytest.raises(http.client.IncompleteRead):
        ask(provider)
    assert len(provider.paid()) == 1


def test_a_hanging_provider_has_taken_the_money(provider: Provider) -> None:
    provider.plan("ok", faults=[{"fault": "hang"}])
    with pytest.raises(socket.timeout):
        ask(provider, timeout=0.2)
    assert len(provider.paid()) == 1


def test_a_dripping_answer_comes_a_byte_at_a_time_and_whole(provider: Provider) -> None:
    provider.plan("ok", faults=[{"fault": "drip", "interval": 0.001}])
    began = time.monotonic()
    assert message_of(ask(provider))["content"] == "ok"
    assert time.monotonic() - began >= 0.1


def test_a_malformed_answer_is_no_json(provider: Provider) -> None:
    provider.plan("ok", faults=[{"fault": "malformed"}])
    with pytest.raises(json.JSONDecodeError):
        ask(provider)


def test_wrong_types_and_no_choices_are_json(provider: Provider) -> None:
    provider.plan("ok", faults=[{"fault": "wrong_types", "on": 1}, {"fault": "empty", "on": 2}])
    assert isinstance(ask(provider)["choices"], str)
    assert ask(provider)["choices"] == []


def test_faults_can_be_counted_by_request_turn_and_times(provider: Provider) -> None:
    def happened(faults: list[dict[str, Any]], requests: int, *messages: Message) -> list[bool]:
        provider.plan("ok", faults=[{"fault": "empty", **fault} for fault in faults])
        return [ask(provider, *messages)["choices"] == [] for _ in range(requests)]

    assert happened([{"on": [1, 3]}], 4) == [True, False, True, False]
    assert happened([{"every": 3}], 6) == [False, True, False, False, True, False]  # requests 5 to 10
    assert happened([{"times": 2}], 4) == [True, True, False, False]
    assert happened([{"turn": 1, "times": 1}], 2) == [False, False]
    assert happened([{"turn": 1, "times": 1}], 2, user("a"), {"role": "assistant", "content": "b"}) == [True, False]


def test_at_the_gate_it_is_paid_and_not_answered(provider: Provider) -> None:
    provider.plan("ok", gate="hold")
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, provider)
        wait_until(provider.paid, "it is paid")
        assert not answer.done()
        provider.open("hold")
        assert message_of(answer.result(10))["content"] == "ok"


def test_latency_is_between_payment_and_answer(provider: Provider) -> None:
    provider.plan("ok", latency=0.2)
    began = time.monotonic()
    ask(provider)
    assert time.monotonic() - began >= 0.2


def test_an_unknown_fault_is_refused_with_the_plan(provider: Provider) -> None:
    with pytest.raises(urllib.error.HTTPError):
        provider.plan(faults=[{"fault": "explode"}])


def test_a_request_without_messages_is_refused_and_not_paid(provider: Provider) -> None:
    for body in ({}, {"stream": True}, []):
        with pytest.raises(urllib.error.HTTPError):
            call(f"{provider.base_url}/chat/completions", body)
    assert provider.ledger() == []
