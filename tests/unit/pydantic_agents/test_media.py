"""Media that tools return reach the model as media, in later requests too, within the limit of results."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent, BinaryImage, DocumentUrl, ImageUrl
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturn
from pydantic_ai.models.function import AgentInfo, FunctionModel

from celery_agents import CeleryDurability

from support.engine import Bench
from support.pydantic_examples import comparable
from support.pydantic_found import conversation_of, found

IMAGE = BinaryContent(bytes(range(256)), media_type="image/png")
PDF = BinaryContent(b"%PDF \xff\xfe", media_type="application/pdf")
LARGE = BinaryContent(b"\x89" * 300_000, media_type="image/png")
RESULTS: dict[str, Any] = {
    "image": IMAGE,
    "subclass": BinaryImage(b"\x89\xff", media_type="image/png"),
    "document": PDF,
    "list": ["see", IMAGE, PDF],
    "object": {"a": IMAGE, "b": [PDF]},
    "url": ImageUrl("http://127.0.0.1/x.png"),
    "document url": DocumentUrl("http://127.0.0.1/x.pdf"),
    "beside": ToolReturn("done", content=["look", IMAGE]),
}


def agent_that_gets(result: Any) -> Any:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if sum(message.kind == "response" for message in messages):
            return ModelResponse(parts=[TextPart("seen")])
        return ModelResponse(parts=[ToolCallPart("give", {}, tool_call_id="c")])

    agent: PydanticAgent[None, Any] = PydanticAgent(
        FunctionModel(answer), name="sees", capabilities=[CeleryDurability(effect="pure")]
    )

    @agent.tool_plain
    def give() -> Any:
        return result

    return agent


@pytest.mark.parametrize("name", RESULTS)
def test_the_model_gets_media_as_after_an_uninterrupted_run_and_in_later_requests_too(name: str) -> None:
    agent = agent_that_gets(RESULTS[name])
    ours = found(agent)
    bench = Bench(ours)
    try:
        session = bench.submit("go", agent=ours)
        bench.run(session)
        expected = agent.run_sync("go")
        assert comparable(conversation_of(bench, session).history) == comparable(expected.all_messages())
        bench.send(session, "and now?")
        bench.run(session)
        expected = agent.run_sync("and now?", message_history=expected.all_messages())
        assert comparable(conversation_of(bench, session).history) == comparable(expected.all_messages())
    finally:
        bench.close()


def seen(result: Any, **settings: Any) -> tuple[Any, int]:
    """What the model gets of a result, and the bytes of the session."""
    ours = found(agent_that_gets(result))
    bench = Bench(ours, **settings)
    try:
        session = bench.submit("go", agent=ours)
        bench.run(session)
        assert bench.record(session).status == "completed"
        parts = conversation_of(bench, session).history[2].parts
        return [part.content for part in parts], len(bench.state(session).to_json())
    finally:
        bench.close()


@pytest.mark.parametrize("result", [LARGE, ["see", LARGE], {"a": LARGE}, ToolReturn("see", content=["x", LARGE])])
def test_media_beyond_the_limit_are_left_out_with_a_sentence(result: Any) -> None:
    content, stored = seen(result)
    assert "image/png of 300000 bytes is left out" in str(content)
    assert "CELERY_AGENTS_MAX_RESULT_BYTES" in str(content)
    assert stored < 20_000


def test_media_that_fit_stay_beside_those_that_do_not() -> None:
    ((text, image, left_out),), _ = seen(["see", IMAGE, LARGE])
    assert (text, image.data, image.media_type) == ("see", IMAGE.data, IMAGE.media_type)
    assert "left out" in left_out


def test_a_higher_limit_lets_large_media_through() -> None:
    (content,), _ = seen(BinaryContent(b"\x89" * 1_500_000, media_type="image/png"), max_result_bytes=3_000_000)
    assert isinstance(content, BinaryContent)
    assert len(content.data) == 1_500_000
