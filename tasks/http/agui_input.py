"""Inputs of AG-UI runs: which message is sent, and which answers are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from ag_ui import core

from ...worker.errors import InvalidInput
from ...worker.state.execution.answers import Answer, Approve, Deny, GivenAnswer
from ...worker.state.execution.requests import RequestKind
from ...worker.store.requests.records import FoundRequest

_SAID: Final = ("user", "assistant", "tool")
_PAYLOAD_FIELDS: Final = frozenset({"approved", "reason", "editedArgs"})


def check_input(given: core.RunAgentInput) -> None:
    """Refuse what a caller would expect to have an effect, and has none: agents bring their own tools and state.

    Raises:
        InvalidInput: One of these fields is not empty.
    """
    for field, value in (
        ("tools", given.tools),
        ("context", given.context),
        ("state", given.state),
        ("forwardedProps", given.forwarded_props),
    ):
        if value:
            raise InvalidInput(field, type(value).__name__, "leave it out: an agent's tools and state are its own.")


def new_message(given: core.RunAgentInput) -> str | None:
    """The message that a run sends: the last one, when it is the user's. None: the run sends nothing.

    Raises:
        InvalidInput: It holds other parts than text.
    """
    if not given.messages or not isinstance(given.messages[-1], core.UserMessage):
        return None
    content = given.messages[-1].content
    if isinstance(content, str):
        return content
    field = f"messages[{len(given.messages) - 1}].content"
    texts: list[str] = []
    for part in content:
        if not isinstance(part, core.TextPart):
            raise InvalidInput(field, part.type, "give text; agents take no other parts.")
        texts.append(part.text)
    return "\n".join(texts)


def check_first(given: core.RunAgentInput) -> None:
    """Refuse the history of a thread that has no session: a session tells its own history.

    Raises:
        InvalidInput: There are further messages.
    """
    if sum(message.role in _SAID for message in given.messages) > 1:
        advice = "this thread is not known here, or its time is over. Begin a new one with one message of the user."
        raise InvalidInput("threadId", given.thread_id, advice)


def read_resume(entry: core.ResumeEntry, found: FoundRequest) -> GivenAnswer:
    """Read the answer to an interrupt.

    Raises:
        InvalidInput: The payload does not fit; the error names the interrupt.
    """
    field = f"resume.{entry.interrupt_id}"
    if entry.status == "cancelled":
        return Deny("The user has cancelled this.")
    if found.summary.kind is RequestKind.QUESTION:
        return Answer(entry.payload)
    given: object = entry.payload
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{field}.payload", type(given).__name__, 'give {"approved": true} or false.')
    payload = cast("Mapping[str, Any]", given)
    unknown = sorted(set(payload) - _PAYLOAD_FIELDS)
    if unknown:
        known = ", ".join(sorted(_PAYLOAD_FIELDS))
        raise InvalidInput(f"{field}.payload", unknown, f"the fields are {known}.")
    approved, edited = payload.get("approved"), payload.get("editedArgs")
    if not isinstance(approved, bool):
        raise InvalidInput(f"{field}.payload.approved", type(approved).__name__, "give true or false.")
    if not approved:
        return Deny(str(payload.get("reason") or ""))
    return Approve() if edited is None else Approve(args=edited)
