"""Every error of this package, one tree.

    CeleryAgentsError
    ├── ConfigurationError          settings that cannot work; said at start
    │   └── MissingExtra            an optional dependency is not installed
    ├── InvalidInput                a value from outside that cannot be used (also a ValueError)
    ├── InvalidTransition           an execution cannot go from this status to that one
    ├── ActionRefused               a session's controller or status does not allow this
    │   ├── SessionBusy             a message that must not wait met an execution that runs or waits
    │   ├── MessageNotWaiting       the message was delivered, or there is none
    │   ├── MessageNotOwn           it waits, and somebody else has sent it
    │   ├── MessagesUnseen          messages have come that whoever answers a request has not seen
    │   └── RequestNotOpen          the request was answered, has expired or was cancelled
    ├── MessageUndelivered          the message was taken back, so that it has no result
    ├── RequestNotFound             the session made no request with this id
    ├── IdempotencyMismatch         the same key was used for another request
    ├── UnknownAgent                no worker offers an agent of this name
    ├── UnknownTool                 the agent has no tool of this name
    ├── SessionNotFound
    │   ├── SessionArchived         it is in the archive, which this process does not know
    │   ├── SessionDeleted          it was deleted
    │   └── SessionExpired          its retention is over
    ├── SessionConflict             the session was saved by someone else, or exists already
    ├── ClaimLost                   another worker took this step over; nothing was written
    ├── VersionConflict             the session was saved since it was loaded; nothing was written
    ├── StoreUnavailable            no answer in time; the write may have happened
    │   ├── ArchiveUnavailable      the archive does not answer, or refuses
    │   ├── StoreForbidden          this Redis user may not do that
    │   ├── LoginRefused            Redis refuses user or password (also a ConfigurationError)
    │   └── NotConfirmed            written, and too few replicas have it yet
    ├── StoreFull                   the store refuses writes for want of memory
    ├── StateUnreadable             stored data that are damaged or incomplete
    │   ├── StateTooNew             stored by a newer version of this package
    │   └── InvalidSessionFile      a session's file that is damaged
    ├── NotKept                     what a session was at an earlier step is not kept any more
    ├── ModelCallRefused            a hook or a tool may not ask the model now
    ├── DriverError                 the model could not be asked, or refused
    │   ├── UnusableAnswer          the model answered with something that cannot be read
    │   ├── JobEnded                a job at a provider has ended without an answer
    │   ├── NotYetKnown             whether a job was created at a provider
    │   └── PutOff                  the model, or what the step needs besides, may not be used now
    ├── StepDelayed                 the step is tried again later; what Flower shows of a step in state RETRY
    └── ExecutionFailed             the execution that was waited for ended as failed

Data are attributes; `str(error)` says what to do next. No exception of redis, of celery or of a provider's
client leaves its adapter: it is translated into one of these, with the original as its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_SHOWN_CHARS = 80
_PART_CHARS = 100
_REASON_CHARS = 500
_PRINTED = (str, int, float, datetime, type(None))


def _show(value: object) -> str:
    """Short and without risk: a container's repr can be endless, a huge integer's refuses."""
    if isinstance(value, type):
        return f"a {value.__name__}"
    try:
        text = repr(value) if isinstance(value, _PRINTED) else f"a {type(value).__name__}"
    except ValueError:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text)} characters)"


class CeleryAgentsError(Exception):
    """Something in celery-agents went wrong."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by value, so that an error crosses a process whatever its constructor asks for."""
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(kind: type[CeleryAgentsError], args: tuple[object, ...], data: dict[str, object]) -> CeleryAgentsError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(data)
    return error


class ConfigurationError(CeleryAgentsError):
    """The configuration cannot work."""


class MissingExtra(ConfigurationError):
    """An optional dependency is needed and not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an optional dependency: pip install 'celery-agents[{extra}]'.")
        self.extra = extra
        self.needed_for = needed_for


class InvalidInput(CeleryAgentsError, ValueError):
    """A value that cannot be used: which field, what it was, what to do."""

    def __init__(self, field: str, value: object, advice: str) -> None:
        super().__init__(f"{field}: {advice} Got {_show(value)}.")
        self.field = field
        self.value = value
        self.advice = advice


class InvalidTransition(CeleryAgentsError):
    """An execution cannot go from this status to that one."""

    def __init__(self, execution_id: str, before: str, after: str, advice: str = "") -> None:
        super().__init__(f"Execution {execution_id} cannot go from {before} to {after}. {advice}".rstrip())
        self.execution_id = execution_id
        self.before = before
        self.after = after


class ActionRefused(CeleryAgentsError):
    """This action is not allowed on the session as it is now."""


class SessionBusy(ActionRefused):
    """A message that must not wait met an execution that runs or waits; nothing was written.

    Attributes:
        session_id: The session.
        phase: What its execution does: `run`, `wait`, or `parked`.
        step: The step that it is at.
    """

    def __init__(self, session_id: str, phase: str, step: int) -> None:
        does = {"run": "runs", "wait": "waits for an answer"}.get(phase, "is parked")
        super().__init__(
            f"session {session_id} is busy: its execution {does}, at step {step}; send the message when it has ended, "
            "or with when='steer' or when='queue'"
        )
        self.session_id = session_id
        self.phase = phase
        self.step = step


class MessagesUnseen(ActionRefused):
    """Messages have come that whoever answers a request has not seen; nothing was written.

    Attributes:
        session_id: The session that asks.
        newest: Number of the newest message that it, or a session above it, has not read yet.
        seen: The number that the answer names.
    """

    def __init__(self, session_id: str, *, newest: int, seen: int) -> None:
        super().__init__(
            f"session {session_id} has got message {newest}, and the answer names {seen} as the newest that was seen; "
            f"look at the request again with its messages, and answer with seen={newest}"
        )
        self.session_id = session_id
        self.newest = newest
        self.seen = seen


class MessageUndelivered(CeleryAgentsError):
    """The message was taken back before an execution had it, so that it has no result.

    Attributes:
        session_id: The session.
        operation_id: Of the message.
        reason: `withdrawn`, or `cleared` by a stop.
    """

    def __init__(self, session_id: str, operation_id: str, reason: str) -> None:
        super().__init__(f"message {operation_id} of session {session_id} was {reason} before it was delivered")
        self.session_id = session_id
        self.operation_id = operation_id
        self.reason = reason


class MessageNotWaiting(ActionRefused):
    """The message does not wait any more, or the session has never had it.

    Attributes:
        operation_id: Of the message.
        execution_id: The execution that has it; "" where none has, or where that is forgotten.
    """

    def __init__(self, session_id: str, operation_id: str, *, execution_id: str = "", why: str = "") -> None:
        became = f"it was delivered to execution {execution_id}" if execution_id else why or "no message has this id"
        super().__init__(f"message {operation_id} does not wait in session {session_id}: {became}")
        self.operation_id = operation_id
        self.execution_id = execution_id


class MessageNotOwn(ActionRefused):
    """The message waits, and it is not the caller's own; nothing was written.

    Attributes:
        operation_id: Of the message.
    """

    def __init__(self, session_id: str, operation_id: str, own: str) -> None:
        super().__init__(
            f"message {operation_id} of session {session_id} was not sent by {_show(own)}, who may change messages of "
            "their own only"
        )
        self.operation_id = operation_id


class RequestNotOpen(ActionRefused):
    """The request is not open any more.

    Attributes:
        request_id: The request.
        status: What became of it, such as `answered` or `expired`.
        by: Who answered; "" without an answer.
        at_ms: Redis time of the answer or the expiry; 0: not known.
    """

    def __init__(self, request_id: str, status: str, *, by: str = "", at_ms: int = 0, what: str = "") -> None:
        when = f" at {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if at_ms else ""
        whom = f" by {by}" if by else ""
        super().__init__(f"Request {request_id} is not open: it was {what or status}{whom}{when}.")
        self.request_id = request_id
        self.status = status
        self.by = by
        self.at_ms = at_ms


class RequestNotFound(CeleryAgentsError):
    """The session made no request with this id, or it is too long ago."""

    def __init__(self, session_id: str, request_id: str) -> None:
        super().__init__(
            f"Session {session_id!r} has no request {request_id!r:.100}. List its requests to see their ids."
        )
        self.session_id = session_id
        self.request_id = request_id


class IdempotencyMismatch(CeleryAgentsError):
    """This idempotency key was used before, for a request with another content."""


class UnknownAgent(CeleryAgentsError):
    """No worker offers an agent of this name."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        offered = f"Offered now: {', '.join(sorted(known))}." if known else "No worker offers any agent now."
        super().__init__(f"No worker offers an agent named {name!r}. {offered}")
        self.name = name
        self.known = known


class UnknownTool(CeleryAgentsError):
    """The agent has no tool of this name."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        offered = f"Its tools: {', '.join(sorted(known))}." if known else "It has no tools."
        super().__init__(f"The agent has no tool named {name!r}. {offered}")
        self.name = name
        self.known = known


class SessionNotFound(CeleryAgentsError):
    """There is no session with this id."""

    def __init__(self, session_id: str, message: str = "") -> None:
        super().__init__(message or f"There is no session {session_id!r}.")
        self.session_id = session_id


class SessionExpired(SessionNotFound):
    """The session was there, and its data are gone: its retention is over, or Redis has lost them."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            session_id, f"Session {session_id!r} has expired: its retention is over, or Redis has lost its data."
        )


class SessionArchived(SessionNotFound):
    """The session is in the archive, and this process has no URL of it.

    Attributes:
        mark: What its row in the archive has to equal.
        created_ms: When it was created (Redis ms).
    """

    def __init__(self, session_id: str, mark: str = "", created_ms: int = 0) -> None:
        super().__init__(
            session_id,
            f"Session {session_id!r} is in the archive. Set CELERY_AGENTS_ARCHIVE_URL here, as the workers have it.",
        )
        self.mark = mark
        self.created_ms = created_ms


class SessionDeleted(SessionNotFound):
    """The session was deleted. Its id cannot be used again before its retention is over."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, f"Session {session_id!r} was deleted: nothing of it is left. Begin a new one.")


class SessionConflict(CeleryAgentsError):
    """The session was saved by someone else meanwhile, or a session with this id exists already.

    Attributes:
        expected: The version that the caller had.
        stored: The version in the store.
    """

    def __init__(self, message: str = "", *, expected: int = 0, stored: int = 0) -> None:
        super().__init__(message or "The session was saved meanwhile, or it exists already. Load it again.")
        self.expected = expected
        self.stored = stored


class ClaimLost(CeleryAgentsError):
    """Another worker took this step over; nothing was written."""


class VersionConflict(CeleryAgentsError):
    """The session was saved since it was loaded; nothing was written. Load it again and apply the change again."""


class StoreUnavailable(CeleryAgentsError):
    """The store did not answer in time. A write may have happened; asking again is safe."""


class ArchiveUnavailable(StoreUnavailable):
    """The archive does not answer, refuses, or has no space. A write may have happened; asking again is safe."""


class StoreForbidden(StoreUnavailable):
    """The store refuses this user the command or the key."""


class LoginRefused(StoreUnavailable, ConfigurationError):
    """The store refuses user or password. At start these are wrong; later they may have been changed, and come back."""


class NotConfirmed(StoreUnavailable):
    """It is written, and not confirmed by a replica; asking again is safe, and does nothing twice.

    Attributes:
        why: What is wrong with the replicas.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"written, and not confirmed by a replica; ask again ({why})")
        self.why = why


class StoreFull(CeleryAgentsError):
    """The store refuses writes because its memory is full."""


WRONG_TYPE = "redis"
"""The part that a `StateUnreadable` names when a key holds another type; Redis does not say which key."""


class StateUnreadable(CeleryAgentsError):
    """Stored data that are damaged or incomplete.

    Attributes:
        part: Which part, such as `head`, `messages[12]` or `steps[3]`.
        reason: What is wrong with it; never the data themselves. Of a damaged name that is longer the beginning.
    """

    def __init__(self, part: str, reason: str) -> None:
        part, reason = part[:_PART_CHARS], reason[:_REASON_CHARS]
        super().__init__(f"The stored state cannot be read: {part}: {reason}")
        self.part = part
        self.reason = reason


class NotKept(CeleryAgentsError):
    """A value that a session had at an earlier step is not kept, or not any more; the session itself can be read.

    Attributes:
        name: The value, such as `metadata/plan` or `messages/summary/2`; "steps" where the whole step is not kept.
        step: The number of the step.
    """

    def __init__(self, name: str, step: int, reason: str = "") -> None:
        reason = reason or (
            "old values have a bound for each session, CELERY_AGENTS_HISTORY_BYTES, and the oldest are dropped first"
        )
        super().__init__(f"The value {name!r} of step {step} is not kept: {reason}.")
        self.name = name
        self.step = step


class InvalidSessionFile(StateUnreadable):
    """The file of a session is damaged; it stays as it is, and other sessions can be used.

    Attributes:
        path: The file.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path[-_PART_CHARS:], f"{reason}. Move the file away, or put a copy in its place.")
        self.path = path


class StateTooNew(StateUnreadable):
    """The state was stored by a newer version of this package: a worker of that version must carry it on."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__("schema_version", f"it is {version}, this worker knows up to {known}. Upgrade this worker.")
        self.version = version
        self.known = known


class ModelCallRefused(CeleryAgentsError):
    """No model call may begin: a limit is reached, the execution ends, or another worker has the step.

    Attributes:
        signals: The stop signals of the limits that are reached; empty otherwise.
    """

    def __init__(self, why: str = "", signals: tuple[Any, ...] = ()) -> None:
        super().__init__(f"The model may not be asked: {why}." if why else "")
        self.signals = signals


class DriverError(CeleryAgentsError):
    """The model could not be asked, or refused. Never holds the provider's body, which can repeat a key.

    Attributes:
        kind: A short stable name, such as `rate_limit`, `timeout`, `authentication`.
        transient: Asking again later may help.
        status: HTTP status, None when there was no answer.
        code: The provider's error code, None when it gave none.
        request_id: The provider's id of the request, None when it gave none.
        retry_after: Seconds the provider asks to wait, None when it did not say.
        limits: Limits of a minute that the refusal names, by dimension, such as `requests`; most name none.
        is_limited: The provider's limits are known to all workers by now, and say when to ask again.
    """

    def __init__(
        self,
        kind: str,
        message: str = "",
        *,
        transient: bool,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(message or f"The model request failed: {kind}.")
        if not isinstance(retry_after, (int, float, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"retry_after={retry_after!r:.40}: give seconds as a number, or None")
        self.kind = kind
        self.transient = transient
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        self.limits = limits or {}
        self.is_limited = False


class UnusableAnswer(DriverError):
    """The model answered, and the answer cannot be read. Asking again may give a better one.

    Attributes:
        permanent: Asking again cannot help. False unless the driver knows better.
        correction: What to tell the model when it is asked again; "" asks the same question.
        text: What the model had answered, to precede the correction.
        usage: An `InferenceUsage`: the tokens that the answer cost; None when unknown.
        cost: US dollars; None when the price is unknown.
        model: Name of the model that answered, as an `InferenceResponse` has it; None when unknown.
    """

    def __init__(
        self,
        message: str = "The model's answer cannot be read.",
        *,
        permanent: bool = False,
        request_id: str | None = None,
        correction: str = "",
    ) -> None:
        super().__init__("unusable_answer", message, transient=not permanent, request_id=request_id)
        self.permanent = permanent
        self.correction = correction
        self.text = ""
        self.usage: Any = None
        self.cost: float | None = None
        self.model: str | None = None

    def paid(self, usage: Any, cost: float | None, text: str = "", model: str | None = None) -> UnusableAnswer:
        """The same error with what the answer cost, so that it is counted, what it said, and which model gave it."""
        self.usage, self.cost, self.text, self.model = usage, cost, text, model
        return self


class PutOff(DriverError):
    """The model, or what the step needs besides, may not be used now. No request was made.

    Attributes:
        retry_after: Seconds after which it may be.
        put_off: What puts the step off: the digest of a bucket of requests, or the field of a pause.
        is_told: Whether watchers are told.
    """

    def __init__(self, why: str, seconds: float, put_off: str, *, is_told: bool = True) -> None:
        super().__init__("put_off", why, transient=True, retry_after=seconds)
        self.seconds = seconds
        self.put_off = put_off
        self.is_told = is_told


class JobEnded(DriverError):
    """A job at a provider has ended without an answer: it failed, expired, was cancelled, or is not known any more."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(kind, why, transient=True)


class NotYetKnown(DriverError):
    """A provider cannot tell yet whether a job was created."""

    def __init__(self, why: str) -> None:
        super().__init__("not_yet_known", why, transient=True)


class StepDelayed(CeleryAgentsError):
    """The step was given back and is tried again later.

    Attributes:
        seconds: Time until the next try.
    """

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


class ExecutionFailed(CeleryAgentsError):
    """The execution that was waited for ended as failed.

    Attributes:
        execution_id: Which.
        errors: What its state lists, the last one last; texts without secrets.
    """

    def __init__(self, execution_id: str, errors: tuple[str, ...] = ()) -> None:
        why = errors[-1] if errors else "no error was recorded"
        super().__init__(f"Execution {execution_id} failed: {why}")
        self.execution_id = execution_id
        self.errors = errors
