"""Durable pydantic-ai agents on the interfaces of OpenAI and Anthropic, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent

from celery_agents import CeleryDurability
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.pydantic_agents.driver import PydanticAgentDriver

from support.engine import Bench
from support.pydantic_found import found
from support.wire import FAMILIES, Said, Wire

pytestmark = [
    pytest.mark.parametrize("family", FAMILIES),
    pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"]),
]
PNG = BinaryContent(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db0"
        "0000000049454e44ae426082"
    ),
    media_type="image/png",
)


class Streaming(PydanticAgentDriver):
    """Asks as it does where somebody follows the session."""

    async def infer(self, request: InferenceRequest) -> bytes:
        return await super().infer(replace(request, emit=lambda piece: None))


class Desk:
    """The tools of an agent, and what they were asked."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_broken = False

    def agent(self, model: Any) -> Any:
        agent: PydanticAgent[None, Any] = PydanticAgent(
            model, name="desk", capabilities=[CeleryDurability(effect="keyed")]
        )

        @agent.tool_plain
        def look(text: str) -> str:
            self.log.append(f"look {text}")
            return f"looked {text}"

        @agent.tool_plain
        def delete(text: str) -> str:
            self.log.append(f"delete {text}")
            if self.is_broken:
                raise ValueError("broken")
            return f"deleted {text}"

        @agent.tool_plain
        def picture() -> BinaryContent:
            return PNG

        return agent


@contextmanager
def running(wire: Wire, desk: Desk, *, streamed: bool) -> Iterator[tuple[Bench, str]]:
    agent = desk.agent(wire.model())
    ours = found(agent)
    if streamed:
        watched = replace(ours, driver=Streaming(agent, CeleryDurability(effect="keyed")))
        object.__setattr__(watched, "toolset", ours.toolset)
        ours = watched
    bench = Bench(ours)
    try:
        session = bench.submit("go")
        bench.run(session)
        if wire.family == "openai":  # pydantic-ai asks Anthropic by streams in any case
            assert {bool(body.get("stream")) for body in wire.requests} == {streamed}
        yield bench, session
    finally:
        bench.close()


TWINS: Sequence[Any] = [("x", "look", {"text": "A"}), ("x", "delete", {"text": "B"})]


def test_calls_with_one_id_run_and_are_answered_as_they_were_made(family: str, streamed: bool) -> None:
    wire, desk = Wire(family, [Said(calls=TWINS), Said("done")]), Desk()
    with running(wire, desk, streamed=streamed) as (bench, session):
        assert bench.record(session).status == "completed"
        assert sorted(desk.log) == ["delete B", "look A"]
        (first, looked), (second, deleted) = wire.results()
        assert first != second
        assert ("looked A" in str(looked), "deleted B" in str(deleted)) == (True, True)


@pytest.mark.parametrize("end", ["stop", "length", "content_filter"])
def test_the_reason_for_the_end_of_an_answer_is_told(family: str, streamed: bool, end: str) -> None:
    with running(Wire(family, [Said("Half of", end=end)]), Desk(), streamed=streamed) as (bench, session):
        record = bench.record(session)
        assert (record.final_response, record.finish_reason) == ("Half of", end)
        assert (record.usage["input"], record.usage["output"]) == (10, 5)


def test_a_call_whose_tool_raised_is_made_again_and_answered(family: str, streamed: bool) -> None:
    wire, desk = Wire(family, [Said(calls=TWINS), Said("done")]), Desk()
    desk.is_broken = True
    with running(wire, desk, streamed=streamed) as (bench, session):
        assert bench.record(session).status == "failed"
        desk.is_broken = False
        bench.retry(session)
        bench.run(session)
        assert bench.record(session).status == "completed"
        assert sorted(desk.log) == ["delete B", "delete B", "look A"]
        assert len(wire.requests) == 2
        assert ["looked A" in str(wire.results()[0]), "deleted B" in str(wire.results()[1])] == [True, True]


def test_media_of_a_result_are_sent_as_media_in_each_request(family: str, streamed: bool) -> None:
    wire = Wire(family, [Said(calls=[("p", "picture", {})]), Said("seen"), Said("seen again")])
    with running(wire, Desk(), streamed=streamed) as (bench, session):
        bench.send(session, "look again")
        bench.run(session)
        assert bench.record(session).status == "completed"
        for body in wire.requests[1:]:
            assert ("'image_url'" if family == "openai" else "'type': 'image'") in str(body["messages"])
            assert "vendor_metadata" not in str(body["messages"]), "its fields are not sent as text"
