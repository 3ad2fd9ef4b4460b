"""Children: the sessions that a step starts for others, as its requests and their answers name them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ..values.canonical import canonical_digest
from ..values.field_types import Amount, Count, Flag, JsonField, Text
from ..values.frozen import FrozenDict
from ..values.ids import ChildSessionId, SessionId
from ..values.value import Value
from .budget import UNLIMITED, ExecutionBudget
from .signals import StopReason
from .status import ExecutionStatus
from .usage import NO_USAGE, InferenceUsage

MAX_TREE_SESSIONS: Final = 256
"""Most sessions of one tree, its root included."""

_DIGITS: Final = 32


class JoinRule(StrEnum):
    """The rules that say when the children of a step have done their work.

    Attributes:
        ALL: When each has ended.
        FIRST: When the first one has completed; the others are stopped.
    """

    ALL = "all"
    FIRST = "first"


class ChildFailure(StrEnum):
    """The rules that say what the failure of a child does to its parent.

    Attributes:
        TELL: The call is an error, which the model reads.
        FAIL: The parent's execution fails when the other children of the step have ended.
        FAIL_FAST: The parent's execution fails at once, and the other children are stopped.
    """

    TELL = "tell"
    FAIL = "fail"
    FAIL_FAST = "fail_fast"


class ChildOrder(Value):
    """The child session that a request waits for.

    Attributes:
        session_id, execution_id: Of the child; they follow from the call, so the child is made once.
        agent: The name of its agent.
        prompt: The message that it begins with.
        budget: The reservation: its limits, taken from what its parent has left.
        group: Children of one group race, where their rule is FIRST.
        is_result: The end of the child is the result of the call. False: the tool that wants it runs again.
        depth: 1 for a child of a root.
        merge: Names of metadata entries that the parent takes over.
        merge_parts: Names of state parts that the parent takes over.
    """

    session_id: Text
    execution_id: Text
    agent: Text
    prompt: Text = ""
    budget: ExecutionBudget = UNLIMITED
    on_failure: ChildFailure = ChildFailure.TELL
    join: JoinRule = JoinRule.ALL
    group: Text = ""
    is_result: Flag = True
    depth: Count = 1
    merge: tuple[Text, ...] = ()
    merge_parts: tuple[Text, ...] = ()

    def with_prompt(self, prompt: str) -> ChildOrder:
        """The same order, beginning with another message."""
        return self._with(prompt=prompt)


class ParentLink(Value):
    """The place of a child in its tree, as its session keeps it.

    Attributes:
        session_id, execution_id, step, index, round: The request of the parent that the child answers.
        request_id: The id of that request.
        depth: 1 for a child of a root.
        merge: Names of metadata entries that the parent takes over.
        merge_parts: Names of state parts that the parent takes over.
        task_id: The Celery task that made the child.
        root_task_id: The Celery task at the root of the tree.
        root_execution_id: The execution at the root of the tree; the whole tree is one trace.
        retries: How often the parent's execution had been retried.
        max_depth: Levels below the root that the agents above the child allow, the least of all; None: as its own
            agent says.
    """

    session_id: Text
    execution_id: Text
    step: Count
    index: Count
    round: Count = 0
    request_id: Text
    depth: Count = 1
    merge: tuple[Text, ...] = ()
    merge_parts: tuple[Text, ...] = ()
    task_id: Text = ""
    root_task_id: Text = ""
    root_execution_id: Text = ""
    retries: Count = 0
    max_depth: Count | None = None


class ChildEnd(Value):
    """How a child ended: the value of the answer to its request.

    Attributes:
        response: Its final response; of a stopped child what it said last.
        output: Its answer as JSON, where its agent has an output type; None otherwise, and where it is too large: then
            `response` is the beginning of its JSON.
        reason: Why it stopped; None where it did not.
        message: What the stop signal said, or the error; redacted.
        steps: Its steps and those of its own children.
        usage, cost: Of it and of its own children.
        seconds: The time it took, without waiting for people.
        metadata: The entries that its parent takes over.
        parts: The state parts that its parent takes over, as JSON objects by name.
        left_out: What was too large to bring: `output`, then names of metadata entries and of state parts.
    """

    session_id: Text
    agent: Text = ""
    status: ExecutionStatus
    response: Text = ""
    output: JsonField = None
    reason: StopReason | None = None
    message: Text = ""
    steps: Count = 0
    usage: InferenceUsage = NO_USAGE
    cost: Amount | None = None
    seconds: Amount = 0.0
    metadata: FrozenDict = FrozenDict()
    parts: FrozenDict = FrozenDict()
    left_out: tuple[Text, ...] = ()

    @classmethod
    def from_stored(cls, value: FrozenDict) -> ChildEnd:
        """Read the value of a stored answer.

        Raises:
            pydantic.ValidationError: A field does not fit.
        """
        return cls.from_dict(value)

    @property
    def has_failed(self) -> bool:
        """Whether the child failed; one that was stopped by its limits or by a person has not."""
        return self.status is ExecutionStatus.FAILED

    @property
    def is_partial(self) -> bool:
        """Whether the child was stopped before it had finished."""
        return self.status is ExecutionStatus.STOPPED


def child_ids(parent: str, execution_id: str, step: int, place: tuple[int, int]) -> tuple[ChildSessionId, str]:
    """Derive the ids of a child's session and of its execution: the same for every worker that makes it.

    Args:
        parent: The id of the parent's session.
        place: Call index and round.
    """
    digest = canonical_digest(["child", str(parent), str(execution_id), step, *place])
    root = SessionId(str(parent).partition(".")[0])
    return ChildSessionId(f"{root}.{digest[:_DIGITS]}"), digest[_DIGITS:]
