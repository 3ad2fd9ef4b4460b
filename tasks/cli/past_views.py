"""Earlier states of a session as lines for people: what a model saw in a step, and how two states differ.

Text of a model, of a tool or of a user is always indented, so that it cannot look like a line of this program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ...worker.state.past.differences import NOTHING, Difference
from ...worker.state.past.seen_requests import ModelRequest
from .views import as_json, clean, one_line

if TYPE_CHECKING:
    from ..client.client import AgentClient

_MAX_CHARACTERS: Final = 2_000
_INDENT: Final = "    "


def past_lines(client: AgentClient, session_id: str, step: int, *, is_request: bool, is_json: bool) -> Iterator[str]:
    """Read the request that the model saw in a step, or the state that the step has committed."""
    if not is_request:
        yield as_json(client.state(session_id, at=step).to_dict())
        return
    found = client.model_request(session_id, step=step)
    yield from [as_json(found.to_dict())] if is_json else request_lines(found)


def difference_lines(differences: Iterable[Difference]) -> Iterator[str]:
    """Two states value by value, without the texts' ends."""
    for each in differences:
        yield clean("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in each.path).lstrip("."))
        for sign, value in (("-", each.before), ("+", each.after)):
            if value is not NOTHING:
                yield f"{_INDENT}{sign} {one_line(as_json(value), _MAX_CHARACTERS)}"


def request_lines(request: ModelRequest) -> Iterator[str]:
    """The request of a model, from its prompt to its tools, with no text shortened."""
    yield f"{_name(request.agent) or 'an agent'}, step {request.step}, model {_name(request.model) or 'not known'}"
    yield from _block("system prompt", request.system_prompt)
    for message in request.messages or ():
        calls = "".join(f" [{_name(call.name)} {as_json(call.to_dict()['args'])}]" for call in message.tool_calls)
        yield from _block(f"{message.role.value}{calls}", message.content)
    for tool in request.tools or ():
        yield from _block(f"tool {_name(tool['name'])} {as_json(tool['parameters'])}", tool["description"])
    if request.settings:
        yield f"settings {as_json(request.settings)}"
    if request.response_format:
        yield f"response format {as_json(request.response_format)}"
    yield from (f"not kept any more: {_name(name)}" for name in request.not_kept)
    yield from request.notes


def _name(text: str) -> str:
    return one_line(text, _MAX_CHARACTERS)


def _block(head: str, text: str | None) -> Iterator[str]:
    if text is not None:
        yield head
        yield from (f"{_INDENT}{clean(line)}" for line in text.splitlines())
