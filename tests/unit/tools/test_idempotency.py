"""The key by which a service recognises a call again."""

import re

from hypothesis import given
from hypothesis import strategies as st

from celery_agents.worker.state import FrozenDict
from celery_agents.worker.tools import idempotency_key

arguments = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text(), max_size=5)


def key(execution: str = "e", step: int = 1, index: int = 0, tool: str = "pay", args: object = None) -> str:
    return idempotency_key(execution, step, index, tool, {} if args is None else args)  # type: ignore[arg-type]


def test_it_is_the_same_for_every_attempt_and_never_changes_between_versions():
    assert key(args={"amount": 5}) == "15cf412598a7bcfb0daf6056c74244e4491b0228fc6ea458e1c588c19fe63539"


def test_everything_that_makes_another_call_makes_another_key():
    keys = {
        key(),
        key(execution="f"),
        key(step=2),
        key(index=1),
        key(tool="refund"),
        key(args={"a": 1}),
        key(args={"a": "1"}),
        key(args={"a": None}),
        key(args={"a": [1]}),
        key(args="{}"),
    }
    assert len(keys) == 10


@given(arguments)
def test_the_order_of_arguments_does_not_matter(args: dict[str, object]):
    backwards = dict(reversed(list(args.items())))
    assert key(args=args) == key(args=backwards) == key(args=FrozenDict(args))
    assert re.fullmatch("[0-9a-f]{64}", key(args=args))


def test_nested_objects_and_odd_text():
    assert key(args={"a": {"x": 1, "y": [{"p": 1, "q": 2}]}}) == key(args={"a": {"y": [{"q": 2, "p": 1}], "x": 1}})
    assert key(args={"text": "\x00 🐎 \ud83d"}) != key(args={"text": ""})
