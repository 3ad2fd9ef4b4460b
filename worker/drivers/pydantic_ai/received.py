"""Makes an answer storable, and finds the stream that broke off, before anything is stored.

An answer was paid for. What storage cannot hold is written otherwise, so that the model reads what was wrong with it;
only a stream that broke off counts as no answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticSerializationError

from ...errors import DriverError
from ...redaction import whole_unicode
from .acceptable import finite_value
from .provider_rules import ProviderRules
from .sent_names import restore_names

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import ModelRequestParameters


INTERRUPTED: Final = "interrupted"
"""The kind of the error about a stream that broke off."""


def interrupted_stream(model: str) -> DriverError:
    """The error of a stream that ended without the provider's word that the answer is whole; none of it is used."""
    said = f"{model}: the stream of its answer ended without a finish reason, before the answer was whole."
    return DriverError(INTERRUPTED, said, transient=True)


def receive(response: ModelResponse, parameters: ModelRequestParameters) -> ModelResponse:
    """The answer with the tools' own names, as storage can hold it.

    Args:
        parameters: Those of the request, as they were sent.
    """
    return make_storable(restore_names(response, parameters))


def make_storable(response: ModelResponse) -> ModelResponse:
    """The same answer in whole Unicode, with arguments that JSON can hold.

    Arguments with a number or half a character that JSON cannot hold become the text that the model wrote: whoever
    checks them tells the model. A text that is None, as pydantic-ai makes of a block that is newer than it, is left
    out.
    """
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    parts = [
        replace(part, args=json.dumps(part.args))
        if part.part_kind == "tool-call" and isinstance(part.args, dict) and not _is_json(part.args)
        else part
        for part in response.parts
        if getattr(part, "content", "") is not None or part.part_kind not in ("text", "thinking")
    ]
    if len(parts) < len(response.parts) or any(a is not b for a, b in zip(parts, response.parts, strict=True)):
        response = replace(response, parts=parts)
    try:
        ModelMessagesTypeAdapter.dump_json([response])
    except PydanticSerializationError:
        dumped: Any = ModelMessagesTypeAdapter.dump_python([response])
        return ModelMessagesTypeAdapter.validate_python(_whole(dumped))[0]  # type: ignore[return-value]
    return response


def _is_json(args: Mapping[str, Any]) -> bool:
    """Whether arguments are JSON in whole Unicode."""
    return finite_value(args) is args and _whole(args) == args


def _whole(value: Any, name: str = "") -> Any:
    """A dumped answer in whole Unicode. A signature of a thought that changes is left out: it is one of other words."""
    if isinstance(value, str):
        return _escape_halves(value) if name == "args" else whole_unicode(value)
    if isinstance(value, (list, tuple)):
        return [_whole(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, dict):
        return value
    whole = {whole_unicode(key): _whole(each, key) for key, each in value.items()}  # pyright: ignore
    if whole.get("part_kind") == "thinking" and whole["content"] != value["content"]:
        whole["signature"] = None
    return whole


def _escape_halves(text: str) -> str:
    """JSON text in which half a character is an escape, as the model may have written it."""
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return "".join(f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in joined)


def check_is_whole(response: ModelResponse, rules: ProviderRules | None, model: str, *, streamed: bool) -> None:
    """Check that an answer is whole, as the provider says.

    Args:
        model: What was asked, for the error.
        streamed: It was asked for as a stream.
    Raises:
        DriverError: It has no finish reason, and one of this provider always has.
    """
    if response.state == "suspended" or rules is None:
        return
    details = response.provider_details or {}
    is_ended = bool(details.get("finish_reason") or details.get("refusal"))
    is_ended = is_ended or (response.finish_reason is not None and not rules.invents_reason)
    needs_reason = rules.ends_streams if streamed else rules.ends_answers
    if (streamed and response.state != "complete") or (needs_reason and not is_ended):
        raise interrupted_stream(model)
