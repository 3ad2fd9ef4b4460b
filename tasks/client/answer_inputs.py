"""Checks of what a caller answers: answers as values or as JSON, digests, addressees and tokens' lifetimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

from ...worker.errors import InvalidInput
from ...worker.state.execution.answers import Answer, Approve, Complete, Deny, Fail, GivenAnswer
from ...worker.state.execution.requests import RequestKind, RequestStatus
from ...worker.state.values.frozen import check_text
from ...worker.store.requests.records import RequestFilter

_MOST_ANSWERS: Final = 64
_NAME_CHARS: Final = 200
_LONGEST_TTL: Final = timedelta(days=366)
_FORMS: Final = (
    '{"approve": true}, {"approve": {"args": {…}}}, {"deny": "reason"}, {"answer": {…}}, {"complete": …} '
    'or {"fail": "error"}'
)
_READERS: Final[Mapping[str, Callable[[Any], GivenAnswer]]] = {
    "approve": lambda value: Approve(_read_args(value)),
    "deny": lambda value: Deny(_read_text("deny", value)),
    "answer": Answer,
    "complete": Complete,
    "fail": lambda value: Fail(_read_text("fail", value)),
}

E = TypeVar("E", bound=StrEnum)


def read_answers(answers: Any) -> dict[str, GivenAnswer]:
    """Read the answers of one action, by request id.

    Raises:
        InvalidInput: It is no such mapping; the error names the field.
    """
    if not isinstance(answers, Mapping) or not answers:
        raise InvalidInput("answers", _kind(answers), "give a dict of request id → answer, such as {id: Approve()}.")
    given = cast("Mapping[Any, Any]", answers)
    if len(given) > _MOST_ANSWERS:
        raise InvalidInput("answers", len(given), f"a step has {_MOST_ANSWERS} requests at most.")
    return {check_request_id(name): read_answer(value, f"answers.{name}") for name, value in given.items()}


def read_answer(value: Any, field: str = "answer") -> GivenAnswer:
    """Read one answer: `Approve`, `Deny` and so on, or the same as JSON, such as `{"deny": "duplicate"}`.

    Raises:
        InvalidInput: It is neither.
    """
    if isinstance(value, (Approve, Deny, Answer, Complete, Fail)):
        return value
    if isinstance(value, Mapping):
        form = cast("Mapping[Any, Any]", value)
        verbs = [name for name in form if name in _READERS]
        if len(form) == 1 and verbs:
            try:
                return _READERS[verbs[0]](form[verbs[0]])
            except InvalidInput as error:
                raise InvalidInput(f"{field}.{error.field}", error.value, error.advice) from None
    raise InvalidInput(field, _kind(value), f"give Approve(…), Deny(…) or Answer(…), or as JSON {_FORMS}.")


def read_expect(expect: Any, answers: Mapping[str, GivenAnswer]) -> dict[str, str]:
    """Read the digests that answers are meant for: one text for one answer, or a dict by request id."""
    if expect is None:
        return {}
    if isinstance(expect, str) and len(answers) == 1:
        return {next(iter(answers)): expect}
    if isinstance(expect, Mapping):
        digests = cast("Mapping[Any, Any]", expect)
        for name, digest in digests.items():
            if name not in answers:
                raise InvalidInput(f"expect.{str(name)[:_NAME_CHARS]}", digest, "there is no answer of this id.")
            if not isinstance(digest, str):
                raise InvalidInput(f"expect.{name}", _kind(digest), "give the digest of the request, a text.")
        return dict(cast("Mapping[str, str]", digests))
    raise InvalidInput("expect", _kind(expect), "give the digest of the one request, or a dict of request id → digest.")


def check_request_id(name: Any) -> str:
    """Check the id of a request, or the model's id of a call."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS:
        raise InvalidInput("request_id", name, "give the id of a request, as its listing shows it.")
    return check_text(name, "request_id")


def check_seen(seen: Any) -> int | None:
    """Check the number of the newest message that was seen."""
    if seen is not None and (isinstance(seen, bool) or not isinstance(seen, int) or seen < 0):
        raise InvalidInput("seen", seen, "give the `newest_message` of the request that was looked at, or None.")
    return seen


def read_filter(session_id: str | None, to: Any, kind: Any, status: Any, *, tree: bool) -> RequestFilter:
    """Read the filter of a listing of requests."""
    if to is not None and (not isinstance(to, str) or not to):
        raise InvalidInput("to", to, "give the name of an addressee, or None for everybody's.")
    return RequestFilter(
        session_id=session_id,
        to=to,
        kind=_read_enum("kind", RequestKind, kind),
        status=_read_enum("status", RequestStatus, status),
        tree=tree,
    )


def read_ttl_ms(ttl: Any) -> int | None:
    """Read how long a token is valid, in milliseconds; None: as long as its request."""
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta) or not timedelta(seconds=1) <= ttl <= _LONGEST_TTL:
        raise InvalidInput("ttl", str(ttl), f"give a timedelta of 1 second to {_LONGEST_TTL.days} days, or None.")
    return round(ttl.total_seconds() * 1000)


def _kind(value: Any) -> type[Any]:
    return cast("type[Any]", type(value))


def _read_enum(field: str, kind: type[E], value: Any) -> E | None:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(field, str(value), f"there are {', '.join(kind)}.") from None


def _read_args(value: Any) -> Mapping[str, Any] | None:
    if value is True or value is None:
        return None
    if isinstance(value, Mapping):
        form = cast("Mapping[str, Any]", value)
        if not form:
            return None
        if set(form) == {"args"} and isinstance(form["args"], (Mapping, type(None))):
            return cast("Mapping[str, Any] | None", form["args"])
    raise InvalidInput("approve", _kind(value), 'give true, or {"args": {…}} for other arguments.')


def _read_text(verb: str, value: Any) -> str:
    if value is True or value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(verb, _kind(value), "give a text.")
    return value
