"""Makes a request acceptable to its provider, without changing what is stored.

A model writes what its provider refuses to read back: two calls with one id, a tool's name with a blank in it, a number
that JSON does not have. Each such thing would fail every later request of the session. `make_acceptable` runs before
each request, of our own agents and of pydantic-ai's, and gives a history that `provider_rules` allows. What a model
wrote is changed as little as possible, and always in the same way, so that the provider's cache of the prompt holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from ...redaction import whole_unicode
from .provider_rules import ProviderRules
from .sent_names import SentNames, rename_found, rename_keys
from .sent_schemas import fit_schemas

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

NO_OUTPUT: Final = "(no output)"
"""What the model reads of an empty result."""

_ITEMS: Final = ("rs_", "msg_", "fc_")
"""Ids begin so in OpenAI's responses, which take all of an answer or none; in its chat completions that of a thought
names the field it came in."""

NO_TEXT: Final = "(no text)"
"""What the model reads of a message that is blank."""


@dataclass(frozen=True, slots=True)
class AcceptableRequest:
    """A request as it may be sent.

    Attributes:
        messages: The history, and the question.
        settings: Settings of the model.
        parameters: Tools and outputs, with the names that the provider takes.
    """

    messages: list[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters


def make_acceptable(request: AcceptableRequest, rules: ProviderRules | None) -> AcceptableRequest:
    """Repair what the provider would refuse. What is acceptable stays the same object.

    Args:
        rules: Those of the provider; None for a model without one, whose request stays as it is.
    """
    if rules is None:
        return request
    parameters = fit_schemas(request.parameters)
    names = SentNames.of(parameters, rules)
    messages = _History(rules, names).repair(request.messages)
    if names.is_empty:
        return replace(request, messages=messages, parameters=parameters)
    return AcceptableRequest(messages, names.settings(request.settings), names.parameters(parameters))


@dataclass(slots=True)
class _History:
    """Goes through a history once, from its beginning.

    Attributes:
        used: The ids that calls have got, with the number of the last one that was made of each.
        waiting: The new ids of the calls of the latest answer that have no result yet, by their own ids.
        latest: The newest id that was given for each own id.
    """

    rules: ProviderRules
    names: SentNames
    used: dict[str, int] = field(default_factory=dict[str, int])
    waiting: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    latest: dict[str, str] = field(default_factory=dict[str, str])

    def repair(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        repaired: list[ModelMessage] = []
        follows_request = True
        for number, message in enumerate(messages, 1):
            if message.kind == "response":
                if follows_request:
                    self.waiting.clear()
                repaired.append(self._response(message))
            else:
                request = self._request(message)
                if request.parts or number == len(messages) or not message.parts:
                    repaired.append(request)
            follows_request = message.kind == "request"
        return _alternate(repaired) if self.rules.alternates else repaired

    def _response(self, message: ModelResponse) -> ModelResponse:
        repaired = [self._answer_part(part) for part in message.parts]
        if all(a is b for a, b in zip(repaired, message.parts, strict=True)):
            return message
        return replace(message, parts=[part for part in repaired if part is not None])

    def _answer_part(self, part: Any) -> Any:
        """A part of an answer; None for one that has to be left out."""
        if self.rules.has_thought_fields and (getattr(part, "id", None) or "").startswith(_ITEMS):
            if part.part_kind == "thinking" and not part.content:
                return None
            part = replace(part, id=None)
        if part.part_kind == "tool-call":
            return self._call(part)
        if part.part_kind == "builtin-tool-return":
            return rename_found(part, self.names.tools)
        return _answer_text(part) if part.part_kind in ("text", "thinking") else part

    def _call(self, part: ToolCallPart) -> ToolCallPart:
        call_id, name = self._new_id(part.tool_call_id), self.names.of_tool(part.tool_name)
        self.waiting.setdefault(part.tool_call_id, []).append(call_id)
        self.latest[part.tool_call_id] = call_id
        args = finite_args(part.args)
        keys = self.names.keys.get(part.tool_name)
        if keys:
            args = rename_keys(args, keys)
        if isinstance(args, str):
            args = whole_unicode(args)
        if call_id == part.tool_call_id and name == part.tool_name and args is part.args:
            return part
        return replace(part, tool_call_id=call_id, tool_name=name, args=args)

    def _new_id(self, call_id: str) -> str:
        rule = self.rules.call_id
        fitted = call_id if rule.fits(call_id) else rule.fit(call_id)
        number = self.used.get(fitted)
        if number is None:
            self.used[fitted] = 1
            return fitted
        while (made := rule.fit(fitted, f"_{(number := number + 1)}")) in self.used:
            pass
        self.used[fitted], self.used[made] = number, 1
        return made

    def _request(self, message: ModelRequest) -> ModelRequest:
        repaired = [self._request_part(part) for part in message.parts]
        if all(a is b for a, b in zip(repaired, message.parts, strict=True)):
            return message
        return replace(message, parts=[part for part in repaired if part is not None])

    def _request_part(self, part: Any) -> Any:
        """A part of a request; None for one that has to be left out."""
        kind = part.part_kind
        if kind == "tool-return" or (kind == "retry-prompt" and part.tool_name is not None):
            return self._result(part)
        if kind in ("user-prompt", "system-prompt"):
            return _prompt(part)
        if kind == "tool-availability-delta" and self.names.tools:
            part = replace(part, tools_added=[self.names.of_tool(name) for name in part.tools_added])
        call_id = getattr(part, "tool_call_id", None)
        sent = self.latest.get(call_id, call_id) if call_id else call_id
        return part if sent == call_id else replace(part, tool_call_id=sent)

    def _result(self, part: Any) -> Any:
        """A result with the id of its call; None without one."""
        waiting = self.waiting.get(part.tool_call_id)
        if not waiting:
            return None
        call_id, name = waiting.pop(0), self.names.of_tool(part.tool_name)
        part = rename_found(part, self.names.tools)
        content = part.content
        if content is None or isinstance(content, str):
            content = _words(content or "", NO_OUTPUT)
        if call_id == part.tool_call_id and name == part.tool_name and content is part.content:
            return part
        return replace(part, tool_call_id=call_id, tool_name=name, content=content)


def _answer_text(part: Any) -> Any:
    """A text or a thought in whole Unicode; None for a blank text that nothing refers to."""
    is_text = part.part_kind == "text"
    if is_text and (part.content.isspace() or not part.content):
        return part if part.id else None
    whole = whole_unicode(part.content)
    if whole is part.content:
        return part
    return replace(part, content=whole) if is_text else replace(part, content=whole, signature=None)  # of other words


def _alternate(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The messages with a turn of the user in front of the first answer, and answers that follow each other as one."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    turns: list[ModelMessage] = []
    has_user = False
    for message in messages:
        if message.kind == "request":
            has_user = has_user or any(part.part_kind != "system-prompt" for part in message.parts)
            turns.append(message)
        elif turns and turns[-1].kind == "response":
            turns[-1] = replace(turns[-1], parts=[*turns[-1].parts, *message.parts])
        elif message.parts:
            turns += [message] if has_user else [ModelRequest(parts=[UserPromptPart(NO_TEXT)]), message]
            has_user = True
    return turns


def _prompt(part: Any) -> Any:
    """A prompt of the user or the system, in which no text is blank."""
    content: Any = part.content
    if isinstance(content, str):
        words = _words(content, NO_TEXT)
        return part if words is content else replace(part, content=words)
    items = [each for each in content if not _is_blank_item(each)]
    words = [whole_unicode(each) if isinstance(each, str) else each for each in items]
    if len(words) == len(content) and all(a is b for a, b in zip(words, content, strict=True)):
        return part
    return replace(part, content=words or NO_TEXT)


def _is_blank_item(item: Any) -> bool:
    text = item if isinstance(item, str) else getattr(item, "content", None)
    return isinstance(text, str) and not text.strip()


def _words(text: str, otherwise: str) -> str:
    """The text in whole Unicode; other words in place of a blank one."""
    if not text or text.isspace():
        return otherwise
    return whole_unicode(text)


def finite_args(args: Any) -> Any:
    """Arguments in which numbers that JSON does not have are texts, as in results: "NaN", "Infinity", "-Infinity"."""
    if not isinstance(args, str):
        return finite_value(args)
    try:
        read = from_json(args)  # a search for such numbers takes ten times as long
    except (ValueError, TypeError):  # TypeError: half a surrogate pair
        return args
    repaired = finite_value(read)
    return args if repaired is read else to_json(repaired).decode()


def finite_value(value: Any) -> Any:
    """The value itself where every number in it is finite."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    items: Any = value
    if isinstance(value, dict):
        items = {key: finite_value(each) for key, each in items.items()}
        return value if all(items[key] is each for key, each in value.items()) else items  # pyright: ignore
    if isinstance(value, (list, tuple)):
        items = [finite_value(each) for each in items]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items  # pyright: ignore
    return value
