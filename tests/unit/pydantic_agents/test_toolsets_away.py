"""A server behind a toolset that cannot be reached for a while: nothing has begun, so it is tried again later."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset, WrapperToolset

from celery_agents import CeleryDurability
from celery_agents.worker.engine.outcome import RetryLater
from celery_agents.worker.state import Approve

from support.engine import Bench
from support.pydantic_found import submitted


class Server(WrapperToolset[None]):
    """A toolset that connects when a run begins, as those of MCP servers do.

    Attributes:
        error: Raised instead, as FastMCP does: an error of its own, caused by that of the connection. None: it is there.
        breaks: Its connection is found broken when a run ends.
    """

    def __init__(self, effect: str) -> None:
        self.error: Exception | None = None
        self.breaks = False
        self.calls = list[int]()
        super().__init__(FunctionToolset([Tool(self.fire, metadata={"celery": {"effect": effect}})]))

    async def __aenter__(self) -> Any:
        if self.error is not None:
            raise RuntimeError(f"Client failed to connect: {self.error}") from self.error
        return await super().__aenter__()

    async def __aexit__(self, *args: Any) -> Any:
        await super().__aexit__(*args)
        if self.breaks:
            raise RuntimeError("Server disconnected")

    def fire(self, at: int) -> str:
        """Have an effect each time."""
        self.calls.append(at)
        return "fired"

    def agent(self, *, asks: bool = False) -> PydanticAgent[None, Any]:
        """Ask for one call, and be away from then on.

        Args:
            asks: A person has to approve the call.
        """
        lost = self.error

        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if any(message.kind == "response" for message in messages):
                return ModelResponse(parts=[TextPart("done")])
            self.error = lost
            return ModelResponse(parts=[ToolCallPart("fire", {"at": 1})])

        self.error = None
        return PydanticAgent(
            FunctionModel(answer),
            name="agent",
            toolsets=[self.approval_required() if asks else self],
            capabilities=[CeleryDurability()],
        )


REFUSED = ConnectionRefusedError(111, "Connection refused")


def wait_for_server(bench: Bench, session: str) -> None:
    """Let the time pass for which a session waits."""
    bench.clock.go_on(300)
    bench.run(session)


def wait_in_vain(bench: Bench, session: str) -> int:
    """Let the times pass for which a session waits, until it has ended; how many there were."""
    waits = 0
    while bench.execution(session).status == "waiting":
        waits += 1
        wait_for_server(bench, session)
    return waits


def test_the_model_is_asked_when_the_server_is_back() -> None:
    server = Server("unsafe")
    agent = server.agent()
    server.error = REFUSED
    with submitted(agent) as (bench, session):
        outcome = bench.step(session)
        assert isinstance(outcome, RetryLater)
        assert "Client failed to connect" in outcome.reason


def test_an_agent_whose_server_cannot_be_started_fails_at_once() -> None:
    server = Server("unsafe")
    agent = server.agent()
    server.error = FileNotFoundError(2, "No such file", "server.py")
    with submitted(agent) as (bench, session):
        bench.run(session)
        assert bench.record(session).status == "failed"


@pytest.mark.parametrize("effect", ["unsafe", "keyed"])
def test_a_call_waits_until_the_server_is_back_and_is_made_once(effect: str) -> None:
    server = Server(effect)
    server.error = REFUSED
    with submitted(server.agent()) as (bench, session):
        bench.run(session)
        assert bench.execution(session).status == "waiting"
        assert "Client failed to connect" in bench.open_request(session).text
        server.error = None
        wait_in_vain(bench, session)
        assert bench.record(session).final_response == "done"
        assert server.calls == [1]


def test_a_call_that_could_not_begin_for_long_fails_and_is_made_by_a_retry() -> None:
    server = Server("unsafe")
    server.error = REFUSED
    with submitted(server.agent()) as (bench, session):
        bench.run(session)
        assert wait_in_vain(bench, session) > 1
        record = bench.record(session)
        assert (record.status, server.calls) == ("failed", [])
        assert "Client failed to connect" in record.errors[0]
        server.error = None
        bench.retry(session)
        bench.run(session)
        assert bench.record(session).final_response == "done"
        assert server.calls == [1]


def test_what_a_run_has_got_counts_although_its_toolset_cannot_be_closed() -> None:
    server = Server("unsafe")
    agent = server.agent()
    server.breaks = True
    with submitted(agent) as (bench, session):
        outcomes = bench.run(session)
        assert len(outcomes) == 2, "no answer was paid for again"
        assert bench.record(session).final_response == "done"
        assert server.calls == [1]


def test_a_call_that_has_waited_for_its_server_is_approved_by_a_person_all_the_same() -> None:
    server = Server("unsafe")
    server.error = REFUSED
    agent = server.agent(asks=True)
    with submitted(agent) as (bench, session):
        bench.run(session)
        server.error = None
        wait_for_server(bench, session)
        assert "May fire be called?" in bench.open_request(session).text
        assert server.calls == []
        server.error = REFUSED
        bench.answer(session, Approve())
        bench.run(session)
        assert "Client failed to connect" in bench.open_request(session).text
        server.error = None
        wait_in_vain(bench, session)
        assert bench.record(session).final_response == "done"
        assert server.calls == [1]
