"""Parts of capabilities: typed, immutable, kept by who does not know them, and written as they grow."""

from __future__ import annotations

import math
from typing import Any

import pytest

from celery_agents.worker.errors import ConfigurationError, InvalidInput, StateTooNew, StateUnreadable
from celery_agents.worker.state import (
    AgentState,
    ListPart,
    PartItem,
    PartScope,
    StatePart,
    changes,
    head_json,
    join,
    read_head,
)
from celery_agents.worker.state.agent_fields import PARTS_SCHEMA_VERSION, PLAIN_SCHEMA_VERSION

from support.states import final_step, running


class Plan(StatePart):
    part_name = "plan"
    items: tuple[str, ...] = ()
    version: int = 1


class Notes(StatePart):
    part_name = "notes"
    scope = PartScope.SESSION
    text: str = ""


class Thought(PartItem):
    text: str
    weight: float = 1.0


class Thoughts(ListPart[Thought]):
    part_name = "thoughts"


class Facts(ListPart[Thought]):
    part_name = "facts"
    scope = PartScope.SESSION


def _ended(state: AgentState) -> AgentState:
    return state.with_current_step(final_step()).with_execution_completed()


def _stored(state: AgentState) -> AgentState:
    lists = {name: each.items for name, each in state.part_lists.items()}
    sections = {name: section.messages for name, section in state.store.sections.items()}
    steps = state.execution.step_executions if state.execution is not None else ()
    return join(head_json(state), sections, steps, lists)


def test_a_part_that_is_not_stored_reads_as_its_default() -> None:
    state = running()
    assert state.part(Plan) == Plan()
    assert len(state.part(Thoughts)) == 0
    assert not state.has_part(Plan)


def test_a_part_is_read_as_it_was_given_and_the_former_state_is_unchanged() -> None:
    before = running()
    after = before.with_part(Plan(items=("look", "write"))).with_part(Notes(text="EUR"))
    assert after.part(Plan) == Plan(items=("look", "write"))
    assert after.part(Notes).text == "EUR"
    assert before.part(Plan) == Plan()


def test_parts_of_the_execution_are_reset_when_the_next_one_starts_and_those_of_the_session_stay() -> None:
    state = running().with_part(Plan(items=("look",))).with_part(Notes(text="EUR"))
    state = state.with_part(Thoughts([Thought(text="a")])).with_part(Facts([Thought(text="b")]))
    ended = _ended(state)
    assert ended.part(Plan).items == ("look",)
    following = ended.with_execution("next")
    assert (following.part(Plan), len(following.part(Thoughts))) == (Plan(), 0)
    assert (following.part(Notes).text, following.part(Facts)[0].text) == ("EUR", "b")


def test_a_retried_execution_keeps_its_parts() -> None:
    from celery_agents.worker.state import ErrorInfo

    failed = running().with_part(Plan(items=("look",))).with_failure(ErrorInfo(kind="engine"))
    assert failed.for_retry().part(Plan).items == ("look",)


def test_a_state_with_parts_comes_back_from_json_from_a_dict_and_from_its_lists() -> None:
    state = running().with_part(Plan(items=("look",))).with_part(Facts([Thought(text="b", weight=0.5)]))
    state = state.with_part(Thoughts([Thought(text="a")]))
    assert AgentState.from_json(state.to_json()) == state
    assert AgentState.from_dict(state.to_dict()) == state
    assert _stored(state) == state


def test_a_state_without_parts_keeps_the_stored_form_of_before() -> None:
    state = running()
    assert state.schema_version == PLAIN_SCHEMA_VERSION
    assert b"parts" not in state.to_json() + head_json(state)
    assert b"lists" not in head_json(state)
    assert b"charged" not in head_json(state)


def test_a_state_with_parts_is_refused_by_older_workers_until_the_parts_are_gone() -> None:
    state = running().with_part(Plan())
    assert state.schema_version == PARTS_SCHEMA_VERSION > PLAIN_SCHEMA_VERSION
    assert _ended(state).with_execution("next").schema_version == PLAIN_SCHEMA_VERSION
    assert state.without_part(Plan).schema_version == PLAIN_SCHEMA_VERSION
    with pytest.raises(StateTooNew):
        read_head(head_json(state).replace(b'"schema_version":2', b'"schema_version":99'))


def test_a_part_that_this_worker_does_not_know_is_kept_and_written_back() -> None:
    state = running().with_part(Plan(items=("look",))).with_part(Facts([Thought(text="b")]))
    data = state.to_dict()
    data["execution"]["parts"]["values"]["later"] = {"deep": [1, {"x": None}]}
    data["parts"]["lists"]["log"] = {"generation": 3, "items": [{"a": 1}, "text"], "newer": True}
    read = AgentState.from_dict(data).with_part(Plan(items=("write",)))
    again = _stored(_ended(read)).to_dict()
    assert again["execution"]["parts"]["values"]["later"] == {"deep": [1, {"x": None}]}
    assert again["parts"]["lists"]["log"] == {"generation": 3, "items": [{"a": 1}, "text"], "newer": True}


def test_fields_that_a_newer_version_gave_to_a_part_survive_its_change() -> None:
    data = running().with_part(Plan(items=("look",))).to_dict()
    data["execution"]["parts"]["values"]["plan"]["owner"] = "reviewer"
    state = AgentState.from_dict(data)
    changed = state.with_part(state.part(Plan).replace(items=("write",)))
    assert changed.to_dict()["execution"]["parts"]["values"]["plan"] == {
        "items": ["write"], "version": 1, "owner": "reviewer",
    }  # fmt: skip


def test_a_part_is_stored_whole_so_that_another_default_changes_nothing() -> None:
    assert running().with_part(Plan()).to_dict()["execution"]["parts"]["values"]["plan"] == {"items": [], "version": 1}


def test_wrong_fields_and_items_are_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no such field"):
        Plan(itemz=())  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="weight"):
        Thought(text="a", weight=float("inf"))
    with pytest.raises(InvalidInput, match="give items of Thought"):
        Thoughts().append("text")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="derive from"):
        type("Loose", (ListPart,), {})


class Anything(PartItem):
    value: Any = None


class Things(ListPart[Anything]):
    part_name = "things"


class Kept(StatePart):
    part_name = "kept"
    value: Any = None


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


@pytest.mark.parametrize("value", [math.nan, -math.inf, {"a": [math.nan]}, nested(120), nested(196), nested(220)])
def test_values_that_could_not_be_read_again_as_they_are_are_refused(value: Any) -> None:
    with pytest.raises((InvalidInput, ValueError)):
        Things().append(Anything(value=value))
    with pytest.raises((InvalidInput, ValueError)):
        running().with_part(Kept(value=value))


def test_values_that_nest_as_deep_as_json_values_may_come_back() -> None:
    state = running().with_part(Things().append(Anything(value=nested(97)))).with_part(Kept(value=nested(97)))
    for read in (_stored(state), AgentState.from_json(state.to_json())):
        assert read.part(Things)[0].value == read.part(Kept).value == nested(97)


def test_a_stored_part_that_does_not_fit_is_unreadable() -> None:
    data = running().with_part(Plan()).to_dict()
    data["execution"]["parts"]["values"]["plan"]["items"] = 3
    with pytest.raises(StateUnreadable, match="part plan"):
        AgentState.from_dict(data).part(Plan)


def test_one_item_more_of_a_thousand_is_one_item_to_write() -> None:
    before = running().with_part(Thoughts([Thought(text=str(n)) for n in range(1000)]))
    after = before.with_part(before.part(Thoughts).append(Thought(text="new")))
    change = changes(before, after)
    (written,) = change.lists.values()
    assert (written.start, len(written.items), written.length) == (1000, 1, 1001)
    assert not change.dropped_lists
    assert len(head_json(change.state)) == len(head_json(before))
    assert after.part(Thoughts)[-1].text == "new"


def test_a_list_with_another_content_begins_a_new_generation() -> None:
    before = running().with_part(Facts([Thought(text="a"), Thought(text="b")]))
    after = before.with_part(Facts([Thought(text="b")]))
    change = changes(before, after)
    (written,) = change.lists.values()
    assert (written.generation, written.start, len(written.items)) == (1, 0, 1)
    assert change.dropped_lists == {"facts": 0}
    removed = after.without_part(Facts)
    assert (len(removed.part(Facts)), dict(changes(after, removed).dropped_lists)) == (0, {"facts": 1})


def test_lists_of_an_execution_are_dropped_with_it() -> None:
    before = _ended(running().with_part(Thoughts([Thought(text="a")])))
    after = before.with_execution("next").with_part(Thoughts([Thought(text="b")]))
    change = changes(before, after)
    assert dict(change.dropped_lists) == {"thoughts.x": 0}
    assert change.lists["thoughts.x"].start == 0


def test_a_list_that_is_not_as_long_as_the_head_says_is_unreadable() -> None:
    state = running().with_part(Facts([Thought(text="a")]))
    with pytest.raises(StateUnreadable, match="the head says 1 items"):
        join(head_json(state), {"messages": state.store.section().messages}, ())
    with pytest.raises(StateUnreadable, match="part facts"):
        join(head_json(state), {"messages": state.store.section().messages}, (), {"facts": [b"{"]})
