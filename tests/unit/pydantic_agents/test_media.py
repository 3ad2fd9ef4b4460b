"""Contents that tools return reach the model as they are, media as media in later requests too, within the limit."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent, BinaryImage, DocumentUrl, ImageUrl, ModelRetry, RunContext
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


def agent_that_gets(result: Any, give: Any = None) -> Any:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if sum(message.kind == "response" for message in messages):
            return ModelResponse(parts=[TextPart("seen")])
        return ModelResponse(parts=[ToolCallPart("give", {}, tool_call_id="c")])

    agent: PydanticAgent[None, Any] = PydanticAgent(
        FunctionModel(answer), name="sees", capabilities=[CeleryDurability(effect="pure")]
    )

    agent.tool_plain(lambda: result, name="give") if give is None else agent.tool(give, name="give")
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


LONG = "n\n\u00e9" * 200_000


@pytest.mark.parametrize(
    "result",
    [
        ToolReturn(LONG, content="look"),
        ToolReturn({"rows": [LONG, 1]}, content="look"),
        ToolReturn([LONG, 1], content=["look"], metadata={"raw": LONG}),
    ],
)
def test_of_a_long_result_with_more_than_a_value_only_its_long_contents_are_cut(result: ToolReturn) -> None:
    (content, beside), _ = seen(result)
    assert "characters left out]" in content
    assert "pydantic_ai_parts" not in content
    assert 200_000 < len(content.encode()) < 256_000
    assert beside in ("look", ["look"])


def test_an_image_and_its_words_stay_beside_a_text_that_is_too_long() -> None:
    ((text, words, image),), _ = seen([LONG, "see", IMAGE])
    assert (words, image.data) == ("see", IMAGE.data)
    assert text.endswith("characters left out]")


def test_metadata_that_are_too_long_leave_the_result_whole() -> None:
    (content,), _ = seen(ToolReturn("done", metadata={"raw": LONG}))
    assert content == "done"


def test_a_failure_with_a_long_text_is_one_for_the_model() -> None:
    def fail(_: RunContext[None]) -> Any:
        raise ModelRetry(LONG)

    ours = found(agent_that_gets(None, fail))
    bench = Bench(ours)
    try:
        session = bench.submit("go", agent=ours)
        bench.run(session)
        (part,) = conversation_of(bench, session).history[2].parts
        assert part.outcome == "retried"
        assert part.content.endswith("characters left out]")
    finally:
        bench.close()


def test_messages_that_a_tool_enqueues_beyond_the_limit_are_left_out_with_a_sentence() -> None:
    def enqueue(ctx: RunContext[None]) -> str:
        ctx.enqueue(LONG)
        return "done"

    ours = found(agent_that_gets(None, enqueue))
    bench = Bench(ours)
    try:
        session = bench.submit("go", agent=ours)
        bench.run(session)
        content, beside = [part.content for part in conversation_of(bench, session).history[2].parts]
        assert content == "done"
        assert "enqueued are left out" in beside
    finally:
        bench.close()


@pytest.mark.parametrize("result", ["a\ud800", ["a\ud800"], ToolReturn("a\ud800", content="look")])
def test_of_a_result_with_half_a_character_the_rest_is_read(result: Any) -> None:
    (content, *_), _ = seen(result)
    assert content in ("a\ufffd", ["a\ufffd"])
