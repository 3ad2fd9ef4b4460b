"""Messages that a model has seen, described by their places and read back, with any choice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from celery_agents.worker.state import Message, Role, ToolCall
from celery_agents.worker.state.conversation.messages import Extent, MessageStore
from celery_agents.worker.state.past.chosen_messages import describe_chosen, read_chosen

Shown = list[tuple[object, ...]]


def _store(dice: random.Random) -> MessageStore:
    store = MessageStore()
    for number in range(dice.randrange(12)):
        name = dice.choice(("messages", "messages", "buffer"))
        call = ToolCall(id=f"c{dice.randrange(3)}", name="tool", args={"n": dice.randrange(2)})
        store = store.append(
            dice.choice(
                (
                    [Message.user(f"text {dice.randrange(3)}")],
                    [Message.assistant("", [call])],
                    [Message(role=Role.TOOL, content=f"result {number % 3}", tool_call_id=call.id, name="tool")],
                )
            ),
            name,
        )
    return store


def _shown(messages: Sequence[Message]) -> Shown:
    return [
        (each.role, each.content, each.tool_call_id, [(call.id, call.name, call.args) for call in each.tool_calls])
        for each in messages
    ]


@pytest.mark.parametrize("seed", range(40))
def test_any_choice_is_read_back_as_the_model_has_seen_it(seed: int) -> None:
    dice = random.Random(seed)
    store = _store(dice)
    seen = {name: Extent(extent.generation, dice.randint(0, extent.length)) for name, extent in store.extents.items()}
    chosen: list[Message] = []
    for section in store.sections.values():
        chosen += [each for each in section.messages if dice.random() < 0.8]
    if dice.random() < 0.5:
        chosen.insert(dice.randint(0, len(chosen)), Message.system("a summary"))
    if chosen and dice.random() < 0.3:
        place = dice.randrange(len(chosen))
        chosen[place] = chosen[place].with_content("changed by a hook")
    pieces = describe_chosen(chosen, store, seen)
    read = tuple(read_chosen(pieces, lambda name: store.section(name).messages[: seen[name].length]))
    assert _shown(read) == _shown(chosen)


def test_the_same_choice_has_the_same_description_in_the_next_step() -> None:
    store = MessageStore().append([Message.user(f"{n}") for n in range(9)])
    longer = store.append([Message.user("another")])
    summary = Message.system("a summary")
    described = describe_chosen([summary, *store.section().messages[5:]], store, store.extents)
    assert described == describe_chosen([summary, *longer.section().messages[5:]], longer, longer.extents)
    assert described == [summary.to_dict(), ["messages", 5, None]]
    assert describe_chosen(longer.section().messages, longer, longer.extents) == [["messages", 0, None]]


def test_a_call_with_other_arguments_is_another_message() -> None:
    one, other = (Message.assistant("", [ToolCall(id="c", name="tool", args={"n": n})]) for n in (1, 2))
    store = MessageStore().append([one])
    assert describe_chosen([other], store, store.extents) == [other.to_dict()]
    assert describe_chosen([one], store, store.extents) == [["messages", 0, None]]


def test_messages_behind_those_of_the_record_and_of_other_generations_are_kept_whole() -> None:
    store = MessageStore().append([Message.user("a"), Message.user("b")])
    assert describe_chosen(store.section().messages, store, {"messages": Extent(0, 1)}) == [
        ["messages", 0, None],
        Message.user("b").to_dict(),
    ]
    whole = [each.to_dict() for each in store.section().messages]
    assert describe_chosen(store.section().messages, store, {"messages": Extent(1, 2)}) == whole
    assert describe_chosen(store.section().messages, store, {}) == whole


def test_a_thousand_equal_messages_are_described_as_one_piece() -> None:
    store = MessageStore().append([Message.user("yes")] * 1000)
    assert describe_chosen(store.section().messages, store, store.extents) == [["messages", 0, None]]


def test_messages_that_the_chooser_did_not_have_are_kept_whole() -> None:
    store = MessageStore().append([Message.user("a"), Message.user("b")])
    later = store.append([Message.user("c")])
    chosen = [*store.section().messages, Message.user("d")]
    pieces = describe_chosen(chosen, store, later.extents)
    assert pieces == [["messages", 0, 2], Message.user("d").to_dict()]
    assert _shown(tuple(read_chosen(pieces, lambda _: later.section().messages))) == _shown(chosen)
