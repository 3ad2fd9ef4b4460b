"""Answers that a model may give, and what is made inside the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

from celery_agents.worker.drivers.pydantic_ai.answers import Answer as ProviderAnswer
from celery_agents.worker.state import (
    FinishReason,
    FrozenDict,
    InferenceResponse,
    InferenceUsage,
    ToolCall,
)

from .extremes import OBJECTS, Material, short

_USAGE: Final = InferenceUsage(input=2**63 - 1, output=2**63 - 1, requests=1)
ANSWERS: Final = tuple(
    response.to_json()
    for response in (
        InferenceResponse(
            content="done", usage=InferenceUsage(input=10, output=5), cost=0.01, model="m", request_id="r"
        ),
        InferenceResponse(content="done", usage=_USAGE, cost=1e308, finish_reason=FinishReason.LENGTH, thinking="so"),
        InferenceResponse(
            content="first",
            tool_calls=(
                ToolCall(id="a", name="noted", args=FrozenDict(work="a")),
                ToolCall(id="b", name="once", args=FrozenDict(work="b")),
                ToolCall(id="c", name="no such tool", args="no JSON"),
            ),
            usage=_USAGE,
            cost=1e308,
            finish_reason=FinishReason.TOOL_CALLS,
        ),
        InferenceResponse(
            content="{}", output=FrozenDict(a=[1, {"b": None}]), provider=FrozenDict(kind="x", items=[1])
        ),
    )
)


def provider_answers() -> tuple[bytes, ...]:
    """As the driver of pydantic-ai journals them."""
    from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
    from pydantic_ai.usage import RequestUsage

    usage = RequestUsage(input_tokens=100, cache_read_tokens=40, output_tokens=30)
    said: list[list[Any]] = [
        [TextPart("done")],
        [ThinkingPart("so", signature="s"), ToolCallPart("noted", '{"work": "a"}', "c")],
    ]
    return tuple(
        ProviderAnswer(ModelResponse(parts=parts, usage=usage, model_name="m"), "openai:m", 0.5, None).to_raw()
        for parts in said
    )


def functions(material: Material) -> st.SearchStrategy[Any]:
    """What a plain function may return in the place of a model."""
    calls = st.tuples(material.values, material.values).map(lambda drawn: Lazy(_call_of, *drawn))
    responses = st.tuples(
        st.sampled_from(("content", "cost", "output", "thinking", "tool_calls", "provider", "usage", "model")),
        material.values,
    ).map(lambda drawn: Lazy(_response_of, *drawn))
    raised = st.sampled_from(OBJECTS).map(lambda make: Lazy(_raised, make()))
    return material.values | calls | responses | st.lists(material.values, max_size=2) | raised


class Lazy:
    """Made inside the engine, where its errors belong."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self.make = make
        self.given = given

    def __repr__(self) -> str:
        return f"{self.make.__name__}{short(self.given)}"


def _raised(error: Any) -> Any:
    # After a timeout the step is delayed, and its execution does not end.
    if isinstance(error, BaseException) and not isinstance(error, (GeneratorExit, TimeoutError)):
        raise error
    return error


def _call_of(name: Any, args: Any) -> ToolCall:
    return ToolCall(id="c", name=name, args=args)


def _response_of(field: str, value: Any) -> InferenceResponse:
    return InferenceResponse(**{field: value})
