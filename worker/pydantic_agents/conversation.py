"""From the messages of a session to those of pydantic-ai, without loss.

The assistant's message of each step keeps, as the data of its driver, what the step has added: the request, the answer,
and the counters after it. The results of tool calls follow as messages of tools; the driver reads them back into parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from ..recent import KeptWith
from ..state.conversation.messages import Message, Role
from ..state.execution.tool_calls import ToolCall, unique_call_ids
from ..state.values.frozen import FrozenDict, thaw
from .stored_messages import dump_messages, load_messages, load_parts, read_result
from .usages import load_usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart, ToolReturnPart
    from pydantic_ai.usage import RunUsage

KEY: Final = "pydantic_ai_agent"
"""The name under which a message keeps what pydantic-ai has added."""

ANSWER_AGAIN: Final = "answer_again"
"""The call that represents an answer whose output was rejected: the model is asked again in the next step."""

REPEATED: Final = "repeated"
"""The entry of an answer that holds calls of the answer before, which a retry makes again, by their ids."""

SETTLED: Final = "settled"
"""The entry of an answer that holds what its request has settled for those that follow in the execution."""

_NOT_TAKEN: Final = "Output tool not used - the run ended before."


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a run, with which the next step goes on.

    Attributes:
        run_step: Requests to the model.
        output_retries: Rejected outputs.
        tool_retries: Failures in a row, by tool.
        refused: Tools that were called before they were available: the first such call is no failure.
    """

    run_step: int = 0
    output_retries: int = 0
    tool_retries: Mapping[str, int] = field(default_factory=dict[str, int])
    refused: Sequence[str] = ()

    def after(self, results: Iterable[ModelRequestPart]) -> Counters:
        """The counters after the results of a step: a tool that has failed once more, or has succeeded."""
        failed, succeeded, refused = set[str](), set[str](), list(self.refused)
        for part in results:
            if part.part_kind != "tool-return":
                continue
            if part.outcome == "success":
                succeeded.add(part.tool_name)
            elif part.outcome == "retried" and _is_unavailable(part) and part.tool_name not in refused:
                refused.append(part.tool_name)
            elif part.outcome == "retried":
                failed.add(part.tool_name)
        left = {name: count for name, count in self.tool_retries.items() if name not in succeeded}
        left |= {name: self.tool_retries.get(name, 0) + 1 for name in failed}
        return replace(self, tool_retries=left, refused=refused)

    def to_json(self) -> dict[str, Any]:
        """As JSON, to be kept with an answer."""
        kept = asdict(self)
        return kept if self.refused else {name: value for name, value in kept.items() if name != "refused"}


def _is_unavailable(part: ToolReturnPart) -> bool:
    return part.retry is not None and part.retry.cause == "unavailable_tool"


Prompt = str | list[str] | None
"""Texts of the user, as a run of pydantic-ai takes them: one, or a list of several."""


@dataclass(slots=True)
class Conversation:
    """A conversation, as a run of pydantic-ai takes it.

    Attributes:
        history: The messages before the request, or with it where there is no prompt.
        prompt: What the user has said since; None where the history ends in the request.
        asked: What the user has said before the execution's first answer: the prompt of all its requests and calls.
        counters: What this execution has counted.
        usage: What this execution has used.
        settled: What the execution's first request has settled; see `internals.settled_by`. Empty: there was none.
        known: How many messages of the history earlier steps have kept; what follows is kept by the next step.
        queued: Messages that tools have enqueued and that no request has carried yet, as JSON.
        results: The results of the other calls, by their ids, where the history ends in an answer whose outputs are to
            be taken; else None.
    """

    history: list[ModelMessage]
    prompt: Prompt
    asked: Prompt
    counters: Counters
    usage: RunUsage
    settled: Mapping[str, Any] = field(default_factory=dict[str, Any])
    known: int = 0
    queued: list[Any] = field(default_factory=list[Any])
    results: Mapping[str, Sequence[ModelRequestPart]] | None = None


def with_unique_call_ids(response: ModelResponse) -> ModelResponse:
    """The answer with an id of its own for each call."""
    given = [part.tool_call_id for part in response.tool_calls]
    ids = unique_call_ids(given)
    if list(ids) == given:
        return response
    unused = iter(ids)
    parts = [replace(p, tool_call_id=next(unused)) if p.part_kind == "tool-call" else p for p in response.parts]
    return replace(response, parts=parts)


CallIds = list[tuple[str, str]]
"""The id of each call of an answer as it was stored, and the one that it has in the conversation."""


def make_call_ids_unique(history: list[ModelMessage], known: int = 0, ids: CallIds | None = None) -> CallIds:
    """Give each call of a history an id of its own within its answer, and its result the same one.

    They lack that where an earlier build stored equal ids as the model wrote them.

    Args:
        known: The number of messages that have them already.
        ids: What was returned for those.
    Returns:
        The calls of the last answer whose ids have changed, as far as no result of theirs was found.
    """
    ids = [] if ids is None else list(ids)
    for place in range(known, len(history)):
        message = history[place]
        if message.kind == "response":
            unique = with_unique_call_ids(message)
            calls = () if unique is message else zip(message.tool_calls, unique.tool_calls, strict=True)
            ids = [(given.tool_call_id, made.tool_call_id) for given, made in calls]
            history[place] = unique
        elif ids:
            history[place] = replace(message, parts=_pair_with_calls(message.parts, ids))
    return ids


def _pair_with_calls(parts: Sequence[ModelRequestPart], ids: CallIds) -> list[ModelRequestPart]:
    """Give each result the id of its call: the first of that given id which has no result yet.

    Args:
        ids: The given id of each call and the one that it has now; those of the results found are taken out.
    """
    made: dict[str, str] = {}
    paired: list[Any] = []
    for part in cast("Sequence[Any]", parts):
        given = getattr(part, "tool_call_id", None)
        if given is None:
            paired.append(part)
            continue
        if part.part_kind != "tool-availability-delta":  # that follows its result
            place = next((place for place, (call_id, _) in enumerate(ids) if call_id == given), None)
            made[given] = given if place is None else ids.pop(place)[1]
        paired.append(part if made.get(given, given) == given else replace(part, tool_call_id=made[given]))
    return paired


def called_parts(response: ModelResponse, kept: Mapping[str, Any]) -> list[ToolCallPart]:
    """The calls of an answer that its step carries out, in their order, each with an id of its own.

    Args:
        response: The answer as it was stored.
        kept: What is kept with it.
    """
    named = zip(response.tool_calls, with_unique_call_ids(response).tool_calls, strict=True)
    return [unique for given, unique in named if given.tool_call_id in kept.get("calls", ())]


@dataclass(slots=True)
class KeptMessages:
    """The messages that a step has added to a conversation, and those before that it has left.

    Attributes:
        added: The messages that the step has added: its request, the answer, and the results of outputs.
        earlier: What a history processor has left of the messages before, in their new order: each piece is a range of
            their positions, or a message of the processor's own. None: all of them, as they were.
    """

    added: list[ModelMessage]
    earlier: list[tuple[int, int] | ModelMessage] | None = None

    @classmethod
    def of_run(cls, given: Sequence[ModelMessage], messages: Sequence[ModelMessage], run_id: str) -> KeptMessages:
        """Compare the messages of a run with those that it was given.

        Args:
            given: The messages that earlier steps have kept.
            messages: All messages of the run. Those of its own bear its id.
        """
        known = len(given)
        if len(messages) > known and all(a is b or a == b for a, b in zip(given, messages, strict=False)):
            return cls(list(messages[known:]))
        first = next((i for i, message in enumerate(messages) if message.run_id == run_id), len(messages))
        return cls(list(messages[first:]), _pieces_of(given, messages[:first]))

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> KeptMessages:
        """Read what `to_json` wrote."""
        earlier = thaw(kept.get("earlier"))
        if earlier is None:
            return cls(load_messages(kept["messages"]))
        own = iter(load_messages([piece for piece in earlier if isinstance(piece, Mapping)]))
        pieces = [next(own) if isinstance(piece, Mapping) else (piece[0], piece[1]) for piece in earlier]
        return cls(load_messages(kept["messages"]), pieces)

    def to_json(self) -> dict[str, Any]:
        """As JSON, to be kept with an answer."""
        kept: dict[str, Any] = {"messages": dump_messages(self.added)}
        if self.earlier is not None:
            kept["earlier"] = [
                list(piece) if isinstance(piece, tuple) else dump_messages([piece])[0] for piece in self.earlier
            ]
        return kept

    def extend(self, history: list[ModelMessage]) -> list[ModelMessage]:
        """Let the messages of this step follow in the conversation that preceded it."""
        if self.earlier is not None:
            left: list[ModelMessage] = []
            for piece in self.earlier:
                left += history[piece[0] : piece[1]] if isinstance(piece, tuple) else [piece]
            history[:] = left
        history += self.added
        return history


def _pieces_of(given: Sequence[ModelMessage], left: Sequence[ModelMessage]) -> list[tuple[int, int] | ModelMessage]:
    """Describe the messages that a processor has left as ranges of those it was given, and messages of its own."""
    pieces: list[tuple[int, int] | ModelMessage] = []
    start = 0
    for message in left:
        found = next((i for i in range(start, len(given)) if given[i] is message or given[i] == message), None)
        if found is None:
            pieces.append(message)
            continue
        last = pieces[-1] if pieces else None
        if isinstance(last, tuple) and last[1] == found:
            pieces[-1] = (last[0], found + 1)
        else:
            pieces.append((found, found + 1))
        start = found + 1
    return pieces


def history_message(history: Sequence[ModelMessage]) -> Message:
    """One message that replaces an earlier history, with which a session begins."""
    counters, messages = Counters().to_json(), dump_messages(history)
    kept: dict[str, Any] = {"messages": messages, "results": [], "counters": counters, "usage": {}}
    return Message(role=Role.ASSISTANT, content="(what was said before)", provider=FrozenDict({KEY: kept}))


def read_conversation(messages: Sequence[Message], tag_id: str) -> Conversation:
    """The conversation of a session, as the next step of an execution asks it.

    Args:
        tag_id: The `execution_id` in the metadata of its messages.
    """
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    history, latest = _read_answers(messages, tag_id)
    asked = _prompt_of(_find_texts_before_answers(messages, tag_id))
    settled = _find_settled(messages, tag_id)
    if latest.takes_outputs:
        return Conversation(
            history=history,
            prompt=None,
            asked=asked,
            counters=latest.counters,
            usage=latest.usage,
            settled=settled,
            known=len(history),
            queued=[*latest.queued, *_enqueued(latest.said)],
            results=latest.by_call,
        )
    results, prompt, known = latest.results, None, len(history)
    if latest.goes_on:  # within an execution, what was said meanwhile follows the results
        results = [*results, *(UserPromptPart(content=text) for text in latest.said)]
    else:
        prompt = _prompt_of(latest.said)
    if results:
        history.append(ModelRequest(parts=results))
    counters = latest.counters.after(latest.results)
    return Conversation(
        history=history,
        prompt=prompt,
        asked=asked,
        counters=counters,
        usage=latest.usage,
        settled=settled,
        known=known,
        queued=latest.queued,
    )


def _prompt_of(said: list[str]) -> str | list[str]:
    return said[0] if len(said) == 1 else said


def _find_texts_before_answers(messages: Sequence[Message], tag_id: str) -> list[str]:
    """Find the texts of the user in front of the first answer of an execution."""
    said: list[str] = []
    for message in reversed(messages):
        if message.role is Role.USER:
            said.insert(0, message.content)
        elif message.role is Role.ASSISTANT:
            if message.metadata.get("execution_id") != tag_id:
                break
            if kept_of(message) is not None:  # one that was left off is no answer
                said.clear()
    return said


def _find_settled(messages: Sequence[Message], tag_id: str) -> Mapping[str, Any]:
    """Find what the requests of an execution have settled; the answer that has changed it last keeps it."""
    for message in reversed(messages):
        kept = kept_of(message) if message.metadata.get("execution_id") == tag_id else None
        if kept and SETTLED in kept:
            settled: Any = thaw(kept[SETTLED])
            return settled
    return {}


def _read_answers(messages: Sequence[Message], tag_id: str) -> tuple[list[ModelMessage], _Since]:
    """The history up to the latest answer of a model, and what has come since."""
    read, joined = _find_read_history(messages, tag_id)
    history, ids, known = list(read.history), read.ids, len(read.history)
    answered, answer = joined, messages[joined - 1] if joined else None
    since: list[Message] = []
    repeated: Mapping[str, Any] = {}
    for place in range(answered, len(messages)):
        message = messages[place]
        if message.role is Role.TOOL and message.tool_call_id in repeated:  # in place of the result that failed
            since = [message if each.tool_call_id == message.tool_call_id else each for each in since]
            continue
        if message.role is not Role.ASSISTANT:
            since.append(message)
            continue
        repeated = repeated_calls(message)
        if repeated or _was_left_off(messages, place, tag_id):
            continue
        if kept_of(message) is not None:  # it keeps the request that it answers
            kept = _PARSED.of(message, kept_messages_of)
            kept.extend(history)
            known = known if kept.earlier is None else 0
        else:
            history += _convert(message, _read_since(answer, since, tag_id))
        answer, answered, since = message, place + 1, []
    ids = make_call_ids_unique(history, known, ids if known else None)
    if answer is not None and answered > joined:
        if joined:  # a session has one history
            _HISTORIES.drop(messages[joined - 1])
        before = tuple(messages[: answered - 1])
        read = _ReadHistory(tag_id=tag_id, before=before, history=tuple(history), ids=ids)
        _HISTORIES.keep(answer, read)
    return history, _read_since(answer, since, tag_id)


def _was_left_off(messages: Sequence[Message], place: int, tag_id: str) -> bool:
    """Whether this answer was interrupted, and its execution went on: the next one keeps the request of both.

    What was said by then is no part of the conversation of pydantic-ai, whose counters go on from the answer before.
    """
    own = messages[place].metadata.get("execution_id")
    if own is None or kept_of(messages[place]) is not None:
        return False
    following = next((each for each in messages[place + 1 :] if _keeps_request(each)), None)
    return own == (tag_id if following is None else following.metadata.get("execution_id"))


def _keeps_request(message: Message) -> bool:
    return message.role is Role.ASSISTANT and kept_of(message) is not None and not repeated_calls(message)


@dataclass(frozen=True, slots=True)
class _ReadHistory:
    """The history up to an answer, as it was read for an execution.

    Attributes:
        before: The messages before the answer. Without it, which this is kept with as long as it lives.
        ids: What `make_call_ids_unique` returned for the history.
    """

    tag_id: str = ""
    before: tuple[Message, ...] = ()
    history: tuple[ModelMessage, ...] = ()
    ids: CallIds = field(default_factory=CallIds)


def _find_read_history(messages: Sequence[Message], tag_id: str) -> tuple[_ReadHistory, int]:
    """Find the latest answer whose history was read for this execution, and the number of messages up to it.

    Histories that do not fit, of another execution or with other messages before, are dropped.
    """
    for place in range(len(messages) - 1, -1, -1):
        read = _HISTORIES.get(messages[place])
        if read is not None:
            # A capability may have replaced earlier messages; those that are the same objects are not compared.
            if read.tag_id == tag_id and read.before == tuple(messages[:place]):
                return read, place + 1
            _HISTORIES.drop(messages[place])
    return _ReadHistory(), 0


def _enqueued(said: Iterable[str]) -> list[Any]:
    """Texts of the user as messages that the next request carries, also where the output would have ended the run."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    return [
        {
            "messages": dump_messages([ModelRequest(parts=[UserPromptPart(content=text)])]),
            "priority": "asap",
            "id": f"said-{number}",
            "call": None,
        }
        for number, text in enumerate(said)
    ]


@dataclass(slots=True)
class _Since:
    """Everything that has come since an answer.

    Attributes:
        results: Parts of the next request: results of tool calls, and instructions.
        said: What the user has said.
        counters, usage, queued: As in `Conversation`, with what the answer has kept.
        goes_on: The answer is one of this execution.
        by_call: The parts of each result of a tool call, by the id of the call.
        takes_outputs: The answer has calls of output tools besides others; the next step takes the outputs.
    """

    counters: Counters
    usage: RunUsage
    results: list[ModelRequestPart] = field(default_factory=list["ModelRequestPart"])
    said: list[str] = field(default_factory=list[str])
    queued: list[Any] = field(default_factory=list[Any])
    goes_on: bool = False
    by_call: dict[str, list[ModelRequestPart]] = field(default_factory=dict[str, "list[ModelRequestPart]"])
    takes_outputs: bool = False


def _read_since(answer: Message | None, since: Sequence[Message], tag_id: str) -> _Since:
    """Read the messages that follow an answer; None: those of the beginning."""
    from pydantic_ai.messages import SystemPromptPart, ToolReturnPart
    from pydantic_ai.usage import RunUsage

    kept = None if answer is None else kept_of(answer)
    found = _Since(counters=Counters(), usage=RunUsage())
    if answer is not None and kept is not None:
        found.results = [*load_parts(kept["results"])]
        outputs = kept.get("outputs", ())
        if answer.metadata.get("execution_id") == tag_id:
            found.goes_on = True
            found.counters = Counters(**thaw(kept["counters"]))
            found.usage = load_usage(kept["usage"])
            found.queued = list(thaw(kept.get("queued", ())))
            found.takes_outputs = bool(outputs)
        else:  # the execution ended before the outputs were taken
            found.results += [
                ToolReturnPart(tool_name=name, content=_NOT_TAKEN, tool_call_id=call_id) for call_id, name in outputs
            ]
    ids = [] if answer is None else _call_ids(answer)
    for message in since:
        if message.role is Role.TOOL and not (message.name == ANSWER_AGAIN and is_rejected(kept)):
            result = _PARSED.of(message, read_result)
            parts = _pair_with_calls(result.parts, ids)
            found.by_call[getattr(parts[0], "tool_call_id", "")] = parts
            found.results += parts
            found.queued += result.queued
            found.usage.incr(load_usage(result.used))
        elif message.role is Role.USER:
            found.said.append(message.content)
        elif message.role is Role.SYSTEM:
            found.results.append(SystemPromptPart(content=message.content))
    found.results = _without_repetitions(found.results)
    return found


def is_rejected(kept: Mapping[str, Any] | None) -> bool:
    """Whether the one call of an answer represents its rejected output; a model may write such a name, too."""
    return kept is not None and bool(kept.get("rejected"))


def _call_ids(answer: Message) -> CallIds:
    """The id of each call of an answer as it is stored, with the one that it has in the conversation.

    They differ in answers that earlier builds stored with equal ids.
    """
    given = [call.id for call in answer.tool_calls]
    kept = kept_of(answer)
    if kept is None or len(set(given)) == len(given):
        return list(zip(given, unique_call_ids(given), strict=True))
    messages = load_messages(kept["messages"])
    response: Any = next((each for each in reversed(messages) if each.kind == "response"), None)
    parts = [] if response is None else called_parts(response, kept)
    return [(call_id, part.tool_call_id) for call_id, part in zip(given, parts, strict=False)]


def _without_repetitions(parts: Sequence[ModelRequestPart]) -> list[ModelRequestPart]:
    """The parts, where the first of several results that reveal a tool is the one that does."""
    revealed: set[str] = set()
    kept: list[ModelRequestPart] = []
    for part in parts:
        if part.part_kind != "tool-availability-delta":
            kept.append(part)
        elif names := [name for name in part.tools_added if name not in revealed]:
            revealed.update(names)
            kept.append(replace(part, tools_added=names))
    return kept


def kept_of(message: Message) -> Any:
    """The data that this package keeps with an answer; None for an answer of another driver."""
    return None if message.provider is None else message.provider.get(KEY) or None


def repeated_calls(message: Message) -> Mapping[str, Mapping[str, Any]]:
    """The calls that an answer makes again, by their ids; none for an answer of the model."""
    kept: Mapping[str, Any] = kept_of(message) or {}
    return kept.get(REPEATED, {})


def kept_messages_of(message: Message) -> KeptMessages:
    """The messages that this package keeps with an answer."""
    assert message.provider is not None
    kept: Any = message.provider[KEY]
    return KeptMessages.read(kept)


# A worker that keeps a session reads each of its messages once.
_PARSED: Final = KeptWith[Message, Any]()
_HISTORIES: Final = KeptWith[Message, _ReadHistory]()


def _convert(message: Message, since: _Since) -> list[ModelMessage]:
    """The messages of an answer that another driver gave, with what preceded it."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    parts = [*since.results, *(UserPromptPart(content=text) for text in since.said)]
    text = [TextPart(content=message.content)] if message.content else []
    answer = ModelResponse(parts=[*text, *map(call_part, message.tool_calls)])
    return [ModelRequest(parts=parts), answer] if parts else [answer]


def call_part(call: ToolCall) -> ToolCallPart:
    """A call in pydantic-ai's terms."""
    from pydantic_ai.messages import ToolCallPart

    return ToolCallPart(tool_name=call.name, args=call.args_json(), tool_call_id=call.id)
