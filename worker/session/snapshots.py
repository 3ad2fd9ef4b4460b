"""`SessionSnapshot`: a session as one JSON document, with which another Redis and later code can go on.

The names are those of Cognipeer's agent SDK; see docs/coverage.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import ValidationError

from ..errors import InvalidInput, StateTooNew, StateUnreadable
from ..state.agent_state import AgentState
from ..state.execution.status import ExecutionStatus
from ..state.values.field_types import Checked, Count, FrozenMapField, Text, UtcDatetime, utcnow
from ..state.values.frozen import FrozenDict, FrozenMap, freeze_document, thaw
from ..state.values.value import Value

# Names of functions as JavaScript spells them. Metadata is JSON, so no other name can stand for a function.
_CALLBACK: Final = re.compile(r"_*on[A-Z]\w*|\w*[a-z0-9](Callback|Listener|Handler)s?")


def _read_state(value: Any) -> FrozenDict:
    state = freeze_document(value)
    if isinstance(state, FrozenDict):
        return state
    raise InvalidInput("state", cast("type[Any]", type(value)), "it is no JSON object.")


class SessionSnapshot(Value):
    """A session with all that is committed of it.

    Uncommitted results of a running step are not in it: its model call is made again. An execution keeps its id, so its
    keyed effects keep their keys.

    Attributes:
        session_id: Of the session it was taken of.
        version: Of that session.
        agent: Name of the agent that goes on with it.
        definition: The plain-data form of the agent as the session runtime keeps it; "" for any other session.
        status: Of the session over all its executions.
        labels: Of the session; checked when it is restored.
        tag: A name of the caller's.
        tools: Names of the tools that the agent had; for people, and never compared.
        stripped: Keys of the metadata that name callbacks, such as `onEvent`, and were left out.
        state: The `AgentState` as JSON.
    """

    format: Literal["celery-agents-snapshot"]
    format_version: Literal[1]
    session_id: Text
    version: Count
    agent: Text
    definition: Text = ""
    status: Text = "active"
    labels: FrozenMapField[Text] = FrozenMap[str]()
    tag: Text = ""
    tools: tuple[Text, ...] = ()
    created_at: UtcDatetime
    stripped: tuple[Text, ...] = ()
    state: Annotated[FrozenDict, Checked(_read_state)]

    @classmethod
    def of(cls, state: AgentState, *, tools: Iterable[str] = (), **facts: Any) -> Self:
        """Take a snapshot of a state; `facts` are the other fields."""
        stripped = tuple(sorted(filter(is_callback_like, state.context.metadata)))
        for key in stripped:
            state = state.without_metadata(key)
        return cls(
            format="celery-agents-snapshot",
            format_version=1,
            created_at=utcnow(),
            state=_read_state(state.to_dict()),
            stripped=stripped,
            tools=tuple(sorted(tools)),
            **facts,
        )

    def restored(self, context: Mapping[str, Any] | None, *, merge: bool) -> AgentState:
        """The state to go on with.

        Args:
            context: Entries of the metadata; those that look like callbacks are left out.
            merge: Keep the entries of the snapshot that `context` does not name.
        Raises:
            InvalidInput: The snapshot holds no state, or the context is no JSON.
            StateTooNew: A newer version of this package has written the state.
        """
        try:
            state = AgentState.from_dict(cast("dict[str, Any]", thaw(self.state)))
        except StateTooNew:
            raise
        except (ValidationError, StateUnreadable) as error:
            raise InvalidInput("snapshot.state", _first_problem(error), "it is no state of a session.") from None
        if context is not None:
            for key in () if merge else state.context.metadata:
                state = state.without_metadata(key)
            for key, value in FrozenDict(context).items():
                if not is_callback_like(key):
                    state = state.with_metadata(key, value)
        if state.execution is not None:
            state = state.with_context_and_execution(state.context, state.execution.without_charged_calls())
        return state.with_execution_resumed() if state.status is ExecutionStatus.WAITING else state


def is_callback_like(key: str) -> bool:
    """Whether a key is the name of a function in JavaScript's spelling: `onEvent`, `eventListener`, `eventHandler`."""
    return _CALLBACK.fullmatch(key) is not None


def read_snapshot(given: SessionSnapshot | Mapping[str, Any] | str | bytes) -> SessionSnapshot:
    """Read a snapshot in any of its forms.

    Raises:
        InvalidInput: It is none, or a newer version of this package has taken it; nothing was written.
    """
    if isinstance(given, SessionSnapshot):
        return given
    try:
        if isinstance(given, str | bytes):
            return SessionSnapshot.from_json(given)
        return SessionSnapshot.from_dict(dict(given))
    except (ValueError, TypeError) as error:
        advice = "give what `client.snapshot` has returned, or its JSON."
        raise InvalidInput("snapshot", _first_problem(error), advice) from None


def _first_problem(error: Exception) -> str:
    """The first problem of a value that was read, after the name of its field; nothing of the value."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
