"""The tools of one agent, lookups and the request to stop."""

import pytest

from celery_agents.worker.errors import ConfigurationError, UnknownTool
from celery_agents.worker.state import StopReason
from celery_agents.worker.tools import LookupResult, LookupStatus, StopExecution, ToolSet, ToolSpec, tool


@tool(effect="pure")
def first() -> None:
    """First."""


def second(x: int) -> None:
    """Second."""


def test_tools_are_found_by_name_and_keep_their_order():
    tools = ToolSet([first, second])
    assert tools.names() == ("first", "second")
    assert tools["first"] is first
    assert tools.get("second").description == "Second."  # type: ignore[union-attr]
    assert tools.get("third") is None
    assert "first" in tools
    assert len(tools) == 2
    assert [each.name for each in tools] == ["first", "second"]


def test_specs_are_what_the_model_is_told():
    tools = ToolSet([first, second])
    assert tools.specs() == (
        ToolSpec("first", "First.", first.parameters),
        ToolSpec("second", "Second.", tools["second"].parameters),
    )
    assert tools.specs() is tools.specs()


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(UnknownTool, match="first, second"):
        ToolSet([first, second])["third"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="tool first: two tools have this name"):
        ToolSet([first, tool(name="first")(second)])


def test_what_is_no_tool_is_refused():
    with pytest.raises(ConfigurationError, match="is not a function"):
        ToolSet(["first"])  # type: ignore[list-item]


def test_the_three_answers_of_a_lookup():
    assert LookupResult.happened([1]) == LookupResult(LookupStatus.HAPPENED, [1])
    assert LookupResult.did_not_happen().status is LookupStatus.DID_NOT_HAPPEN
    assert LookupResult.unknown("service is down").reason == "service is down"


def test_a_request_to_stop_carries_a_signal_and_a_result():
    stop = StopExecution("found it", result={"answer": 42}, context={"where": "page 3"})
    assert stop.signal.reason is StopReason.STOP_REQUESTED
    assert stop.signal.message == "found it"
    assert stop.signal.context == {"where": "page 3"}
    assert stop.result == {"answer": 42}
    assert StopExecution(reason=StopReason.COMPLETED).signal.reason is StopReason.COMPLETED
