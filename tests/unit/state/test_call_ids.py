"""The ids of an answer's calls: each call has one of its own, whatever the model wrote."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_agents.worker.state import InferenceResponse, ToolCall, unique_call_ids

IDS = st.lists(st.sampled_from(["", "a", "a_1", "a_2", "call", "call_0", "call_1"]))


@given(IDS)
def test_each_call_gets_an_id_of_its_own_and_the_first_of_equal_ones_keeps_it(ids: list[str]) -> None:
    made = unique_call_ids(ids)
    assert len(set(made)) == len(made) == len(ids)
    assert "" not in made
    kept = [place for place, each in enumerate(ids) if each and each not in ids[:place]]
    assert [made[place] for place in kept] == [ids[place] for place in kept]
    assert unique_call_ids(made) == made


def test_an_answer_with_unique_ids_stays_as_it_is() -> None:
    answer = InferenceResponse(tool_calls=(ToolCall(id="a", name="look"), ToolCall(id="b", name="look")))
    assert answer.with_unique_call_ids() is answer
