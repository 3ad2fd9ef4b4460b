"""The stand-in provider that sells time, with the real libraries as its clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicBadRequest
from openai import (
    APIConnectionError,
    APIStatusError,
    BadRequestError,
    InvalidWebhookSignatureError,
    NotFoundError,
    OpenAI,
)
from pydantic_ai.direct import model_request_stream_sync, model_request_sync
from pydantic_ai.exceptions import SuspendedResponseExpired
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.batch import Batch, BatchRequest
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from support.local_server import LocalServer, QuietHandler
from support.patient_ledger import Book
from support.patient_process import PatientProcess
from support.patient_provider import PatientProvider
from support.wait import wait_until

ADD = ToolDefinition(name="add", parameters_json_schema={"type": "object", "properties": {"n": {"type": "integer"}}})


@pytest.fixture
def provider() -> Iterator[PatientProvider]:
    with PatientProvider() as server:
        yield server


@pytest.fixture
def client(provider: PatientProvider) -> Iterator[OpenAI]:
    with OpenAI(base_url=provider.url, api_key="sk-test", max_retries=0) as made:
        yield made


def windowed(window: str = "8h", **more: Any) -> Any:
    options = {"background_options": {"completion_window": window}}
    return {"model": "gpt-5-mini", "background": True, "extra_body": options, **more}


def model_of(provider: PatientProvider | PatientProcess) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("gpt-5-mini", provider=OpenAIProvider(base_url=provider.url, api_key="sk-test"))


async def answers(model: OpenAIResponsesModel, messages: list[ModelMessage], **extra: Any) -> ModelResponse:
    """What a model says in the background, polled to its end."""
    settings = OpenAIResponsesModelSettings(openai_background=True, openai_store=True, extra_body=extra)
    parameters = ModelRequestParameters(function_tools=[ADD])
    response = await model.request(messages, settings, parameters)
    while response.state == "suspended":
        response = await model.request([*messages, response], settings, parameters)
    return response


# --- background responses ---------------------------------------------------------------------------------------------


def test_a_background_response_is_polled_to_its_end_and_charged_once(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(polls=3)
    created = client.responses.create(input="hello", metadata={"key": "job-1"}, **windowed())
    seen = [client.responses.retrieve(created.id) for _ in range(4)]
    assert [created.status, *(each.status for each in seen)] == ["queued", "queued", "in_progress", *2 * ["completed"]]
    assert seen[-1].output_text == "hello"
    (line,) = provider.book.created()
    assert (line["key"], line["window"], line["text"], line["model"]) == ({"key": "job-1"}, "8h", "hello", "gpt-5-mini")
    (paid,) = provider.book.paid()
    assert seen[-1].usage is not None
    full = (seen[-1].usage.input_tokens * 0.25 + seen[-1].usage.output_tokens * 2.0) / 1e6
    assert paid["dollars"] == provider.book.dollars() == pytest.approx(full * 0.6)
    assert len(provider.book.polls(created.id)) == 4


def test_a_loop_of_tools_is_answered_with_background_responses(provider: PatientProvider) -> None:
    model, messages = model_of(provider), [ModelRequest.user_text_prompt("loop 3 add")]
    window = {"completion_window": "2h"}

    async def run() -> str | None:
        while True:
            response = await answers(model, messages, background_options=window)
            calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
            if not calls:
                return response.text
            results = [ToolReturnPart(call.tool_name, str(call.args), call.tool_call_id) for call in calls]
            messages.extend([response, ModelRequest(parts=results)])

    assert asyncio.run(run()) == 'done after 3: {"n": 3}'
    assert [line["window"] for line in provider.book.paid()] == 4 * ["2h"]


def test_a_job_that_nobody_polls_is_ended_by_the_time_or_by_the_test(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(contains="held", held=True)
    provider.plan(contains="soon", seconds=0.05)
    held = client.responses.create(input="held", **windowed()).id
    client.responses.create(input="soon", **windowed())
    wait_until(lambda: len(provider.book.paid()) == 1, "the one that is due is charged", 5)
    assert client.responses.retrieve(held).status != "completed"
    assert provider.release(held) == 1
    assert client.responses.retrieve(held).status == "completed"
    assert len(provider.book.paid()) == 2


def test_a_stream_is_resumed_behind_the_event_that_was_read_last(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(contains="the", held=True, held_after=6)
    events: list[Any] = []
    text = "the quick brown fox jumps over the lazy dog"
    with client.responses.create(input=text, model="gpt-5-mini", background=True, stream=True) as stream:
        for event in stream:
            events.append(event)
            if len(events) == 6:
                break
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    created = events[0].response.id
    provider.release(created)
    events += client.responses.retrieve(created, stream=True, starting_after=events[-1].sequence_number)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == text
    assert (len(provider.book.created()), len(provider.book.paid())) == (1, 1)


def test_pydantic_ai_streams_live_answers_and_calls(provider: PatientProvider) -> None:
    parameters = ModelRequestParameters(function_tools=[ADD])
    ask = [ModelRequest.user_text_prompt('call add {"n": 4}')]
    with model_request_stream_sync(model_of(provider), ask, model_request_parameters=parameters) as stream:
        list(stream)
        (part,) = stream.response.parts
    assert isinstance(part, ToolCallPart)
    assert part.args_as_dict() == {"n": 4}
    live = model_request_sync(model_of(provider), [ModelRequest.user_text_prompt("hi")])
    assert live.text == "hi"
    assert [line["window"] for line in provider.book.paid()] == [None, None]
    assert float(live.cost().total_price) == pytest.approx(provider.book.paid()[-1]["dollars"])


def test_a_cancelled_job_is_not_charged_and_may_be_cancelled_twice(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(held=True)
    created = client.responses.create(input="hello", **windowed()).id
    assert [client.responses.cancel(created).status for _ in range(2)] == ["cancelled", "cancelled"]
    assert client.responses.retrieve(created).output == []
    client.responses.delete(created)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(created)
    assert [line["kind"] for line in provider.book.lines() if line["id"] == created] == [
        "created", "cancel", "cancel", "poll", "delete",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "status", "charged"), [("failed", "failed", 0), ("expired", "failed", 0), ("incomplete", "incomplete", 1)]
)
def test_a_job_may_end_otherwise(
    provider: PatientProvider, client: OpenAI, end: str, status: str, charged: int
) -> None:
    provider.plan(end=end)
    created = client.responses.create(input="hello world", **windowed()).id
    ended = client.responses.retrieve(created)
    assert (ended.status, len(provider.book.paid())) == (status, charged)
    assert (ended.error is not None, ended.output_text) == (status == "failed", "hello" if charged else "")


def test_what_is_not_stored_or_was_forgotten_is_not_found(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(keep_seconds=0.0)
    unstored = client.responses.create(input="hello", model="gpt-5-mini", background=True, store=False).id
    wait_until(lambda: len(provider.book.paid()) == 1, "it ends", 5)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(unstored)
    stored = client.responses.create(input="hello", **windowed()).id
    with pytest.raises(NotFoundError), OpenAI(base_url=provider.url, api_key="sk-other") as other:
        other.responses.retrieve(stored)
    provider.plan(held=True)

    async def ask_for_a_forgotten_one() -> None:
        ask: list[ModelMessage] = [ModelRequest.user_text_prompt("hi")]
        settings = OpenAIResponsesModelSettings(openai_background=True)
        suspended = await model_of(provider).request(ask, settings, ModelRequestParameters())
        provider.forget(suspended.provider_response_id or "")
        await model_of(provider).request([*ask, suspended], settings, ModelRequestParameters())

    with pytest.raises(SuspendedResponseExpired):
        asyncio.run(ask_for_a_forgotten_one())


def test_a_large_answer_may_come_in_pieces(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(pieces=5, piece_seconds=0.01)
    begun = time.monotonic()
    response = client.responses.create(input="say 2 MB", model="gpt-5-mini")
    assert (len(response.output_text), time.monotonic() - begun > 0.04) == (2_000_000, True)


CALL = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"extra_body": {"completion_window": "8h"}}, "Unknown parameter: 'completion_window'"),
        ({"extra_body": {"background_options": {"completion_window": "24h"}}}, "Invalid value: '24h'"),
        ({"background": False}, "needs 'background': true"),
        ({"store": False}, "needs 'store': true"),
        ({"service_tier": "flex"}, "needs Standard processing"),
        ({"extra_body": {"background_options": {"completion_window": "8h"}, "stream": True}}, "cannot be streamed"),
        ({"input": ""}, "Missing required parameter: 'input'"),
        ({"input": [OUTPUT]}, "No tool call found"),
        ({"input": [CALL]}, "No tool output found"),
        ({"metadata": {"key": "x" * 513}}, "metadata.key"),
        ({"tools": [{"type": "function", "name": "add", "parameters": {"type": "array"}}]}, "Invalid schema"),
    ],
)
def test_what_openai_refuses_is_refused(
    provider: PatientProvider, client: OpenAI, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequestError, match=said):
        client.responses.create(**{"input": "hello", **windowed(), **change})
    assert provider.book.created() == []
    assert [line["status"] for line in provider.book.lines("refused")] == [400]


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_job_is_created_though_its_reply_is_lost(provider: PatientProvider, client: OpenAI) -> None:
    provider.fault("response.create", "lost")
    with pytest.raises(APIConnectionError):
        client.responses.create(input="hello", **windowed())
    client.responses.create(input="again", **windowed())
    assert [line["text"] for line in provider.book.created()] == ["hello", "again"]


def test_requests_are_refused_answered_late_and_cut_as_planned(provider: PatientProvider, client: OpenAI) -> None:
    provider.fault("response.create", "status", code=429, retry_after=7)
    provider.fault("response.create", "no_window", contains="8h")
    provider.fault("response.retrieve", "status", code=503, times=2)
    provider.fault("response.retrieve", "slow", seconds=0.05)
    provider.fault("response.retrieve", "cut", after=20)
    with pytest.raises(APIStatusError) as limited:
        client.responses.create(input="hello", **windowed())
    assert (limited.value.status_code, limited.value.response.headers["retry-after"]) == (429, "7")
    with pytest.raises(BadRequestError, match="'completion_window' is not supported"):
        client.responses.create(input="hello", **windowed())
    assert provider.book.created() == []
    created = client.responses.create(input="hello", **windowed()).id
    for _ in range(2):
        with pytest.raises(APIStatusError, match="503"):
            client.responses.retrieve(created)
    begun = time.monotonic()
    client.responses.retrieve(created)
    assert time.monotonic() - begun > 0.05
    with pytest.raises(APIConnectionError):
        client.responses.retrieve(created)
    with pytest.raises(ValueError, match="no fault 'slowly'"):
        provider.fault("response.create", "slowly")


def test_its_book_survives_a_kill_of_its_process(tmp_path: Path) -> None:
    process = PatientProcess(tmp_path)
    try:
        process.begin()
        process.control("plan", contains="held", held=True)
        with OpenAI(base_url=process.url, api_key="sk-test", max_retries=0) as client:
            created = client.responses.create(input="held", **windowed()).id
            process.kill()
            assert [dataclasses.astuple(job)[0] for job in process.book.jobs()] == [created]
            process.begin()
            assert client.responses.retrieve(created).status == "queued"
            process.control("release", id=created)
            assert client.responses.retrieve(created).output_text == "held"
    finally:
        process.end()
    assert len(Book(tmp_path / "provider.sqlite").paid()) == 1


def test_an_answer_cannot_be_charged_twice(provider: PatientProvider, client: OpenAI) -> None:
    created = client.responses.create(input="hello", model="gpt-5-mini").id
    job = provider.book.find(created)
    assert job is not None
    with pytest.raises(sqlite3.IntegrityError):
        provider.book.charge(job, "gpt-5-mini", (1, 1))
    assert len(provider.book.paid()) == 1


def test_a_job_that_has_ended_since_it_was_read_is_not_ended_again(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(held=True)
    job = provider.book.find(client.responses.create(input="hello", **windowed()).id)
    assert job is not None
    job.released = time.time()
    provider.release(job.id)
    assert provider.shop.advance(job).status == "completed"
    assert len(provider.book.paid()) == 1


def test_a_cancelled_job_may_be_charged_for_what_it_has_done(provider: PatientProvider, client: OpenAI) -> None:
    provider.plan(held=True, is_charged=True)
    client.responses.cancel(client.responses.create(input="hello", **windowed()).id)
    assert [line["window"] for line in provider.book.paid()] == ["8h"]


def test_a_stream_that_is_cut_is_resumed_and_paid_once(provider: PatientProvider, client: OpenAI) -> None:
    provider.fault("response.create", "cut", after=4000)
    provider.plan(event_seconds=0.005)
    events: list[Any] = []
    text = "a b c " * 9
    with pytest.raises(APIConnectionError):
        events.extend(client.responses.create(input=text, model="gpt-5-mini", background=True, stream=True))
    after = events[-1].sequence_number
    assert events[-1].type != "response.completed"
    events += client.responses.retrieve(events[0].response.id, stream=True, starting_after=after)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == text
    assert (len(provider.book.created()), len(provider.book.paid())) == (1, 1)


# --- batches ----------------------------------------------------------------------------------------------------------


def messages_model(provider: PatientProvider) -> AnthropicModel:
    return AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(base_url=provider.root, api_key="sk-test"))


def models(provider: PatientProvider) -> dict[str, Model]:
    return {"openai": model_of(provider), "anthropic": messages_model(provider)}


def asked(key: str, text: str) -> BatchRequest:
    parameters = ModelRequestParameters(function_tools=[ADD])
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt(text)]
    return BatchRequest(custom_id=key, messages=messages, model_request_parameters=parameters)


async def ended(model: Model, batch: Batch) -> Batch:
    while batch.status != "ended":
        await asyncio.sleep(0.005)
        batch = await model.batch_status(batch)
    return batch


@pytest.mark.parametrize("interface", ["openai", "anthropic"])
def test_a_batch_is_polled_and_each_request_of_it_paid_once(provider: PatientProvider, interface: str) -> None:
    provider.plan(polls=3)
    provider.plan(contains="bad", end="errored")
    requests = {
        each.custom_id: each for each in (asked("a", "hello"), asked("b", 'call add {"n": 1}'), asked("c", "bad"))
    }

    async def run() -> tuple[dict[str, str], list[ModelResponse]]:
        model = models(provider)[interface]
        created = await model.batch_create([await model.batch_encode(each) for each in requests.values()])
        results = await model.batch_results(await ended(model, created))
        decoded = [
            model.batch_decode(each, requests[each.custom_id])
            for each in sorted(results, key=lambda result: result.custom_id)
            if each.status == "succeeded"
        ]
        return {each.custom_id: each.status for each in results}, decoded

    statuses, (said, called) = asyncio.run(run())
    assert statuses == {"a": "succeeded", "b": "succeeded", "c": "errored"}
    assert said.text == "hello"
    assert [part.args_as_dict() for part in called.parts if isinstance(part, ToolCallPart)] == [{"n": 1}]
    (line,) = provider.book.created()
    assert (line["keys"], line["window"]) == (["a", "b", "c"], "24h")
    assert {paid["key"] for paid in provider.book.paid()} == {"a", "b"}
    prices = [float(said.cost().total_price), float(called.cost().total_price)]
    assert provider.book.dollars() == pytest.approx(sum(prices))
    asked_for_address = interface == "anthropic"  # its client does, for the results
    assert len(provider.book.polls()) == 3 + asked_for_address


@pytest.mark.parametrize("interface", ["openai", "anthropic"])
@pytest.mark.parametrize(("end", "statuses"), [("expired", {"succeeded", "expired"}), ("cancel", {"canceled"})])
def test_a_batch_may_expire_in_part_or_be_cancelled(
    provider: PatientProvider, interface: str, end: str, statuses: set[str]
) -> None:
    provider.plan(held=end == "cancel", polls=1)
    provider.plan(contains="late", end="expired")

    async def run() -> set[str]:
        model = models(provider)[interface]
        requests = [asked("a", "hello"), asked("b", "late")]
        batch = await model.batch_create([await model.batch_encode(each) for each in requests])
        if end == "cancel":
            assert (await model.batch_cancel(batch)).status == "canceling"
        return {each.status for each in await model.batch_results(await ended(model, batch))}

    assert asyncio.run(run()) == statuses
    assert len(provider.book.paid()) == int("succeeded" in statuses)


def test_batches_of_openai_are_found_by_their_metadata_newest_first(provider: PatientProvider, client: OpenAI) -> None:
    made: list[str] = []
    line = (
        '{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "gpt-5-mini", "input": "hi"}}'
    )
    for number in range(3):
        file = client.files.create(file=("in.jsonl", f"{line}\n".encode()), purpose="batch")
        provider.fault("batch.create", "lost", contains='"1"')
        with contextlib.suppress(APIConnectionError):
            client.batches.create(
                input_file_id=file.id, endpoint="/v1/responses", completion_window="24h", metadata={"key": str(number)}
            )
        made.append(file.id)
    found = list(client.batches.list(limit=2))
    assert [(each.input_file_id, each.metadata) for each in found] == [
        (made[number], {"key": str(number)}) for number in (2, 1, 0)
    ]
    assert client.files.content(made[0]).text == f"{line}\n"
    client.files.delete(made[0])
    with pytest.raises(NotFoundError):
        client.files.content(made[0])


def test_an_input_file_with_wrong_lines_fails_the_batch(provider: PatientProvider, client: OpenAI) -> None:
    line = (
        '{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "gpt-5-mini", "input": "hi"}}'
    )
    file = client.files.create(file=("in.jsonl", f"{line}\n{line}\nno JSON".encode()), purpose="batch")
    with pytest.raises(BadRequestError, match="Supported values are: '24h'"):
        client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="8h")  # type: ignore[arg-type]
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    failed = client.batches.retrieve(batch.id)
    assert failed.errors is not None
    problems = [(each.line, each.code) for each in failed.errors.data or ()]
    assert (failed.status, problems) == ("failed", [(2, "duplicate_custom_id"), (3, "invalid_json_line")])
    assert provider.book.paid() == []


def test_batches_of_anthropic_are_listed_and_deleted_when_they_have_ended(provider: PatientProvider) -> None:
    provider.plan(held=True)
    params: Any = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    with Anthropic(base_url=provider.root, api_key="sk-test", max_retries=0) as client:
        batches = client.beta.messages.batches
        made = [batches.create(requests=[{"custom_id": f"k{number}", "params": params}]).id for number in range(3)]
        assert [each.id for each in batches.list(limit=2)] == made[::-1]
        with pytest.raises(AnthropicBadRequest, match="only one that has ended"):
            batches.delete(made[0])
        provider.release(made[0])
        (result,) = batches.results(made[0])
        assert (result.custom_id, result.result.type) == ("k0", "succeeded")
        batches.delete(made[0])
        assert len(list(batches.list())) == 2
        with pytest.raises(AnthropicBadRequest, match="custom_id"):
            batches.create(requests=[{"custom_id": "no spaces", "params": params}])
        refused = batches.create(requests=[{"custom_id": "r", "params": {**params, "window": "8h"}}]).id
        provider.release(refused)
        (result,) = batches.results(refused)
        assert "window: Extra inputs are not permitted" in result.result.model_dump_json()


def test_anthropic_answers_live_as_well(provider: PatientProvider) -> None:
    model, ask = messages_model(provider), [ModelRequest.user_text_prompt("hello")]
    live = model_request_sync(model, ask)
    with model_request_stream_sync(model, ask) as stream:
        list(stream)
        streamed = stream.response
    assert (live.text, streamed.text) == ("hello", "hello")
    assert live.usage.output_tokens == streamed.usage.output_tokens
    assert provider.book.dollars() == pytest.approx(float(live.cost().total_price + streamed.cost().total_price))


# --- webhooks ---------------------------------------------------------------------------------------------------------

SECRET = "whsec_" + base64.b64encode(b"a secret of the tests").decode()


@pytest.fixture
def received(provider: PatientProvider) -> Iterator[list[tuple[str, dict[str, str]]]]:
    """What has come to the address to which the provider sends its webhooks."""
    seen: list[tuple[str, dict[str, str]]] = []

    class Receiver(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            seen.append((body, dict(self.headers.items())))
            self.send_response(204)
            self.end_headers()

    server = LocalServer(Receiver)
    provider.webhooks(f"{server.url}/hooks", SECRET)
    yield seen
    server.close()


def test_a_webhook_tells_of_each_end_with_a_signature(
    provider: PatientProvider, client: OpenAI, received: list[tuple[str, dict[str, str]]]
) -> None:
    created = client.responses.create(input="hello", **windowed()).id
    wait_until(lambda: len(received) == 1, "the webhook comes", 5)
    event = client.webhooks.unwrap(received[0][0], received[0][1], secret=SECRET)
    assert (event.type, event.data.id) == ("response.completed", created)
    line = (
        '{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "gpt-5-mini", "input": "hi"}}'
    )
    file = client.files.create(file=("in.jsonl", line.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h").id
    wait_until(lambda: len(received) == 2, "that of the batch comes", 5)
    event = client.webhooks.unwrap(received[1][0], received[1][1], secret=SECRET)
    assert (event.type, event.data.id) == ("batch.completed", batch)


def test_webhooks_are_lost_doubled_late_forged_and_old(
    provider: PatientProvider, client: OpenAI, received: list[tuple[str, dict[str, str]]]
) -> None:
    ways = ["lost", "double", "slow", "forged", "old"]
    for way in ways:
        provider.fault("webhook", way, contains=f".{way}", seconds=0.1 if way == "slow" else 0.0)
        provider.webhook(f"response.{way}", "resp_1")
    wait_until(lambda: len(provider.book.lines("webhook")) == 6, "all are sent", 5)
    said = [json.loads(body)["type"].removeprefix("response.") for body, _ in received]
    assert sorted(said) == sorted(["double", "double", "slow", "forged", "old"])
    assert said[-1] == "slow"
    for body, headers in received:
        is_wrong = any(way in body for way in ("forged", "old"))
        with pytest.raises(InvalidWebhookSignatureError) if is_wrong else contextlib.nullcontext():
            client.webhooks.verify_signature(body, headers, secret=SECRET)
