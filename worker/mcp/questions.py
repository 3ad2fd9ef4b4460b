"""Calls to a server as values, and its questions: what a person is asked, and the answers as the server wants them.

A question becomes a request of the waiting step. Its memo holds what the server needs with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, NoReturn

from ..state.values.frozen import thaw
from ..tools.needs import NeedsAnswer, NeedsTime
from ..tools.replies import Memo

_STATE_PAUSE: Final = timedelta(seconds=1)
_VISIT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"done": {"type": "boolean", "description": "True when the page was visited."}},
    "required": ["done"],
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a server asks before it goes on with a call.

    Attributes:
        key: The server's name of the question.
        schema: JSON Schema of the answer; None for a visit to `url`.
        url: The address that a person has to visit; "" for a form.
    """

    key: str
    message: str
    schema: Mapping[str, Any] | None
    url: str = ""


@dataclass(frozen=True, slots=True)
class InputNeeded:
    """The server goes on when its questions are answered.

    Attributes:
        state: To be sent back with the answers; None where the server gave none.
        is_repeated: The server asked during the call and was told that no answer comes now: the call is made again.
        task_id: The task that asks; None for a call.
    """

    questions: tuple[Question, ...]
    state: str | None = None
    is_repeated: bool = False
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class TaskRunning:
    """The server works on a call as a task.

    Attributes:
        poll_seconds: Time after which the server wants to be asked.
    """

    task_id: str
    poll_seconds: float


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """The answer to a question: `action` is accept, decline or cancel."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


@dataclass(slots=True)
class RemoteCall:
    """One call, with what is known about it from earlier tries.

    Attributes:
        tool: The server's name of the tool.
        key: The idempotency key.
        answers: Answers by the server's names of its questions, with the state that belongs to them.
        early: Answers to what the server asks during the call, in the order of the questions.
        asked: Filled with what the server asked during the call and got no answer to.
    """

    tool: str
    arguments: dict[str, Any]
    key: str
    answers: Mapping[str, InputAnswer] = field(default_factory=dict[str, InputAnswer])
    state: str | None = None
    early: list[InputAnswer] = field(default_factory=list[InputAnswer])
    asked: list[Question] = field(default_factory=list[Question])


@dataclass(frozen=True, slots=True)
class EarlierAnswers:
    """The answers that a call takes along.

    Attributes:
        answers: By the server's names of its questions, with the state that belongs to them.
        early: Answers to what the server asks during the call, in the order of the questions.
    """

    answers: Mapping[str, InputAnswer] = field(default_factory=dict[str, Any])
    state: str | None = None
    early: Sequence[InputAnswer] = ()


def ask_person(server: str, needed: InputNeeded) -> NoReturn:
    """Ask a person what the server asks.

    Raises:
        NeedsReply: The request; several questions of a server are one request with a field for each.
    """
    memo: dict[str, Any] = {"keys": [each.key for each in needed.questions], "repeated": needed.is_repeated}
    memo["visits"] = [each.key for each in needed.questions if each.schema is None]
    if needed.state is not None:
        memo["state"] = needed.state
    if needed.task_id is not None:
        memo["task"] = needed.task_id
    if not needed.questions:
        raise NeedsTime(_STATE_PAUSE, why=f"the MCP server {server!r} goes on later").with_memo(memo)
    schema: Mapping[str, Any] = needed.questions[0].schema or _VISIT
    if len(needed.questions) > 1:
        fields = {each.key: dict(each.schema or _VISIT) for each in needed.questions}
        schema = {"type": "object", "properties": fields, "required": list(fields)}
    asking = NeedsAnswer("\n".join(_text(each) for each in needed.questions), schema)
    asking.has_begun = needed.task_id is not None
    raise asking.with_memo(memo)


def earlier_answers(memos: Sequence[Memo]) -> EarlierAnswers:
    """The answers that earlier runs of a call have got."""
    asked = [each for each in memos if "keys" in each.value]
    if not asked:
        return EarlierAnswers()
    early = [answer for each in asked if each.value["repeated"] for answer in _answers(each).values()]
    newest = asked[-1]
    if newest.value["repeated"]:
        return EarlierAnswers(early=early)
    return EarlierAnswers(_answers(newest), newest.value.get("state"), early)


def answers_for_task(memos: Sequence[Memo]) -> tuple[Mapping[str, InputAnswer], frozenset[str]]:
    """The answers that a task may not have got yet, and the names of all its questions that have one."""
    asked = [each for each in memos if "keys" in each.value and "task" in each.value]
    known = frozenset(key for each in asked for key in each.value["keys"])
    newest = next((each for each in reversed(memos) if "away" not in each.value), None)
    is_new = newest is not None and "keys" in newest.value and "task" in newest.value
    return (_answers(newest) if newest is not None and is_new else {}), known


def _answers(memo: Memo) -> dict[str, InputAnswer]:
    keys: list[str] = memo.value["keys"]
    if memo.reply is None:
        return {}
    if memo.reply.refusal is not None:
        return {key: InputAnswer("decline") for key in keys}
    values: Any = thaw(memo.reply.value)
    contents = {keys[0]: values} if len(keys) == 1 else values
    return {key: _answer(contents[key], is_visit=key in memo.value["visits"]) for key in keys}


def _answer(content: Any, *, is_visit: bool) -> InputAnswer:
    if is_visit:
        return InputAnswer("accept" if content.get("done") else "decline")
    return InputAnswer("accept", content)


def _text(question: Question) -> str:
    return f"{question.message} {question.url}".strip()
