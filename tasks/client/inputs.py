"""Checks of the client's arguments: a wrong one is refused with a sentence, before anything is written."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from ...config.settings import Settings
from ...worker.errors import InvalidInput
from ...worker.moments import LAST_MS
from ...worker.state.conversation.context import LLMConfig
from ...worker.state.conversation.messages import Message, Role
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.state.execution.requests import RequestKind
from ...worker.state.values.frozen import FrozenDict, freeze
from ...worker.state.values.ids import ID_PATTERN
from ...worker.store.session_records import SessionState
from ...worker.store.sessions.past_reads import StepAddress

_NAMESPACE: Final = uuid.UUID("0b7c9d0e-4d6a-5c1b-9a64-2f5b8f0e7c11")
_KEY_CHARS: Final = 512
_CALLER_CHARS: Final = 200
_POSITION: Final = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_STEP: Final = re.compile(r"[1-9][0-9]{0,8}")
_CURSOR: Final = re.compile(r"([0-9]{1,16}):(?:[A-Za-z0-9_.-]+,)*([A-Za-z0-9_.-]+)")
_LARGEST: Final = 2**64 - 1
_ASKED: Final = (RequestKind.APPROVAL.value, RequestKind.QUESTION.value, RequestKind.EXTERNAL.value)

TIME_ADVICE: Final = "give a datetime with a timezone, such as datetime.now(timezone.utc)."
STATUSES: Final = tuple(each.value for each in SessionState)


def check_agent_name(name: Any) -> None:
    """Check an agent's name."""
    if not isinstance(name, str) or not ID_PATTERN.fullmatch(name):
        raise InvalidInput("agent", name, "use an agent's name: 1 to 64 letters, digits, '_' or '-'.")


def derive_id(key: Any, what: str) -> str:
    """Derive an id from an idempotency key (UUIDv5); without a key it is random."""
    if key is None:
        return uuid.uuid4().hex
    if not isinstance(key, str) or not key or len(key) > _KEY_CHARS:
        raise InvalidInput("idempotency_key", key, f"use a text of 1 to {_KEY_CHARS} characters.")
    freeze(key, "idempotency_key")
    return uuid.uuid5(_NAMESPACE, f"{what}:{key}").hex


def read_address(at: Any, name: str = "at") -> StepAddress | None:
    """Read the address of a step: `7`, `"7"` or `"<execution>:7"`. None: no step."""
    if at is None:
        return None
    execution_id, separator, number = str(at).rpartition(":")
    is_named = not separator or bool(execution_id)
    if isinstance(at, bool) or not isinstance(at, str | int) or not is_named or not _STEP.fullmatch(number):
        raise InvalidInput(name, at, "give the number of a step, from 1, or '<execution>:<step>'.")
    return StepAddress(int(number), execution_id or None, name)


def read_message(message: Any, limit_bytes: int) -> Message:
    """Read a message of the user, which must not be empty."""
    made = message if isinstance(message, Message) else Message.user(message)
    if made.role is not Role.USER:
        raise InvalidInput("message", made.role.value, "a submitted message must have the role user.")
    if not made.content.strip():
        raise InvalidInput("message", made.content, "say something.")
    check_size("message", len(made.content.encode()), limit_bytes)
    if made.metadata or made.provider:
        check_size("message.metadata", len(_text(made.to_dict())) - len(_text(made.content)), limit_bytes)
    return made


def read_transcript(messages: Any, session_id: str | None, settings: Settings) -> tuple[Message, ...]:
    """Read the messages that a new session begins with: each within the limit of a message, all within a session's."""
    if isinstance(messages, str | bytes | Message) or not isinstance(messages, Iterable):
        raise InvalidInput("messages", messages, "give a list of Message values, oldest first.")
    read = tuple(cast("Iterable[Any]", messages))
    if read and session_id is not None:
        raise InvalidInput("messages", f"{len(read)} messages", "they begin a new session; leave out session_id.")
    sizes: list[int] = []
    for number, message in enumerate(read):
        if not isinstance(message, Message):
            raise InvalidInput(f"messages[{number}]", message, "give a Message, as Message.user('…').")
        sizes.append(len(_text(message.to_dict())))
        check_size(f"messages[{number}]", sizes[-1], settings.max_message_bytes)
    check_size("messages", sum(sizes), settings.max_session_bytes)
    return read


def check_budget(budget: Any) -> None:
    """Check that it is an `ExecutionBudget` or None."""
    if budget is not None and not isinstance(budget, ExecutionBudget):
        raise InvalidInput("budget", budget, "give an ExecutionBudget(max_steps=…, max_cost=…), or None.")


def check_model(model: Any) -> None:
    """Check that it is an `LLMConfig`."""
    if not isinstance(model, LLMConfig):
        raise InvalidInput("model", model, "give an LLMConfig(model='provider:name').")


def read_metadata(metadata: Any, limit_bytes: int) -> FrozenDict:
    """Read a mapping of texts to JSON, of bounded size; None is an empty one."""
    if metadata is None:
        return FrozenDict()
    if not isinstance(metadata, Mapping):
        raise InvalidInput("metadata", metadata, "give a dict with JSON values, or None.")
    frozen = freeze(dict(metadata), "metadata")  # pyright: ignore[reportUnknownArgumentType]
    assert isinstance(frozen, FrozenDict)
    check_size("metadata", len(_text(frozen)), limit_bytes)
    return frozen


def check_text(field: str, value: Any, limit_bytes: int) -> None:
    """Check a text of bounded size."""
    if not isinstance(value, str):
        raise InvalidInput(field, value, "give a text.")
    freeze(value, field)
    check_size(field, len(value.encode()), limit_bytes)


def check_size(field: str, size: int, limit_bytes: int) -> None:
    """Refuse large data, which do not belong in a session."""
    if size > limit_bytes:
        advice = f"at most {limit_bytes} bytes; put large data elsewhere and let a tool fetch it."
        raise InvalidInput(field, f"{size} bytes", advice)


def check_caller(by: Any, field: str = "by") -> None:
    """Check the name of who asks for something, or None."""
    if by is None:
        return
    if not isinstance(by, str) or not by or len(by) > _CALLER_CHARS:
        raise InvalidInput(field, by, f"give a name of 1 to {_CALLER_CHARS} characters, or None.")
    freeze(by, field)


def read_caller(by: Any) -> str:
    """Read the name of who asks for something; "" for None."""
    check_caller(by)
    return by or ""


def check_seconds(timeout: Any) -> None:
    """Check that it is a number of seconds from 0, or None."""
    if timeout is None:
        return
    try:
        is_time = isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and float(timeout) >= 0
    except OverflowError:
        is_time = False
    if not is_time:
        raise InvalidInput("timeout", timeout, "give seconds from 0, or None to wait as long as it takes.")


def read_time_ms(field: str, value: Any, *, may_be_far: bool = False) -> int | None:
    """Read a time with a timezone as Unix milliseconds; None stays None.

    Args:
        may_be_far: Also a time before 1970 or after the year 9999.
    """
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInput(field, value, TIME_ADVICE)
    at_ms = round(value.timestamp() * 1000)
    if not may_be_far and not 0 <= at_ms <= LAST_MS:
        raise InvalidInput(field, value.isoformat(), "give a time from 1970 to the year 9999 in UTC.")
    return at_ms


def check_position(position: Any) -> None:
    """Check that it is the id of an event, or None for the beginning."""
    if position is None:
        return
    is_one = isinstance(position, str) and _POSITION.fullmatch(position) is not None
    if is_one and all(int(part) <= _LARGEST for part in position.split("-")):
        return
    raise InvalidInput("from_id", position, "give the id of an event, as its attribute id says.")


def check_listing(status: Any, limit: Any) -> None:
    """Check a session status and a number of sessions."""
    if status is not None and status not in STATUSES:
        raise InvalidInput("status", status, f"there are {', '.join(STATUSES)}.")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInput("limit", limit, "give a whole number from 1.")


def check_part(field: str, value: Any) -> str | None:
    """Check a text that is looked for, or None."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidInput(field, value, "give a part of the text that is looked for, or None.")
    freeze(value, field)  # half a surrogate pair would be in no text
    return value


def check_kind(kind: Any) -> str | None:
    """Check the kind of request that sessions wait for, or None."""
    if kind is not None and kind not in _ASKED:
        raise InvalidInput("waits_for", kind, f"give {', '.join(_ASKED)}, or None.")
    return kind


def read_cursor(cursor: Any) -> tuple[int, str] | None:
    """Read a cursor: the time and the id of the last session that was listed; None for the first page.

    Sessions of one time are listed by their ids, backwards. Cursors of earlier versions name all of that time.
    """
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidInput("cursor", cursor, "give back the cursor of a page, unchanged.")
    return int(found[1]), found[2]


def fingerprint_request(agent: str, message: Message, budget: ExecutionBudget | None, metadata: FrozenDict) -> str:
    """Hash a request: two requests have the same fingerprint only when they are the same."""
    request: dict[str, Any] = {
        "agent": agent,
        "message": message.to_dict(),
        "budget": budget.to_dict() if budget else None,
        "metadata": metadata,
    }
    return hashlib.sha256(_text(request).encode()).hexdigest()


def fingerprint_messages(messages: Sequence[Message]) -> str:
    """Hash the messages that a new session begins with."""
    return hashlib.sha256(_text([message.to_dict() for message in messages]).encode()).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
