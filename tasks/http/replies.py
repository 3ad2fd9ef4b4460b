"""Bodies of responses. Optional fields are null where there is no value."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from ...worker.capabilities.tracing.trace import Trace
from ...worker.requests.grants import Grant
from ...worker.state.conversation.messages import Message
from ...worker.state.execution.steps import StepExecution
from ...worker.store.session_records import SessionState
from .endpoints import Reply


class Problem(Reply):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What is wrong, and what to do.")
    errors: list[dict[str, str]] | None = Field(None, description="Fields that do not fit: field and message.")
    phase: str | None = Field(None, description="What a busy session does: run, wait or parked.")
    step: int | None = Field(None, description="The step of a busy session.")
    newest_message: int | None = Field(None, description="The newest message, which an answer has not seen.")
    seen: int | None = Field(None, description="The newest message that the answer has named.")


class ResultReply(Reply):
    """How an execution ended."""

    session_id: str
    execution_id: str
    status: str = Field(description="completed, stopped or failed.")
    final_response: str
    output: Any = None
    stop_reason: str | None
    stop_message: str
    usage: dict[str, int]
    cost: float | None = Field(description="US dollars; null when the price is not known.")
    step_count: int
    errors: list[str]
    finish_reason: str | None


class JobReply(Reply):
    """An execution that was submitted, or a message that will be part of one."""

    session_id: str
    execution_id: str = Field(description="Empty as long as the message waits behind a running step.")
    status: str | None = Field(
        None, description="submitted, or how it ended: completed, stopped or failed; null of a snapshot."
    )
    result: ResultReply | None = Field(None, description="When it ended within `wait`.")
    notice: str | None = Field(
        None, description="Why it cannot begin yet: no worker has the agent, a pause, a spend cap."
    )
    operation_id: str | None = Field(None, description="Of the message, by which it is taken back while it waits.")
    placed: str | None = Field(
        None, description="Where a message went: starts, joins, queued, or held with the queue. null: not known."
    )


class SessionReply(Reply):
    """A session without its content."""

    session_id: str
    agent: str
    status: SessionState
    session_status: str = Field(description="active, suspended, completed, failed or deleted.")
    forked_from: str | None = Field(description="The session that it is a fork of; null for any other.")
    execution_id: str
    step: int
    version: int
    created_at: datetime
    updated_at: datetime
    problem: str | None = Field(description="Why it cannot be read; null when it can.")
    unoffered_since: datetime | None
    history_lost: str | None = Field(
        description="What Redis has lost of its history; null where nothing is known to be."
    )
    labels: dict[str, str] = Field(description="By which it is found.")
    confirmed: bool | None = Field(
        description="Whether replicas are known to have how it has ended; null: it has not, or no replica has to."
    )
    is_archived: bool = Field(description="It is in the archive; what acts on it brings it back.")
    reason: str = Field(
        description="Why it has not ended yet; in a listing and in a tree also why it failed or was stopped."
    )


class LabelsReply(Reply):
    """The labels of a session."""

    labels: dict[str, str]


class ErasureReply(Reply):
    """The outcome of an erasure."""

    sessions: list[str] = Field(description="With those below them and their forks.")
    dead_entries: int = Field(description="Entries of the dead list that named one of them.")
    left: dict[str, str] = Field(description="Sessions that are still there, each with the reason.")


class ActOutcomeReply(Reply):
    """The outcome of one session of many."""

    session_id: str
    agent: str
    outcome: str = Field(description="done, unchanged, refused or planned.")
    reason: str = Field(description='Why it was refused; "" otherwise.')
    cost: float | None = Field(description="US dollars that a planned retry may cost at most; null when not known.")


class ActReply(Reply):
    """The outcomes of one act on many sessions."""

    act: str
    counts: dict[str, int] = Field(description="How many sessions have each outcome.")
    outcomes: list[ActOutcomeReply] = Field(description="The last updated first.")
    more: bool = Field(description="There are more than the limit.")


class CostSumReply(Reply):
    """A sum of costs."""

    name: str = Field(description='The agent, model, day or value of the label; "" where there is none.')
    executions: int
    steps: int
    tokens: int = Field(description="Of all kinds.")
    cost: float = Field(description="US dollars, of the answers whose price is known.")
    unpriced: int = Field(description="Executions with an answer whose price is not known.")


class CostsReply(Reply):
    """The costs of executions, added up."""

    sums: list[CostSumReply]
    total: CostSumReply
    unread: list[str] = Field(description="Sessions that cannot be read.")


class ListedSessionReply(SessionReply):
    """A session of a listing."""

    first_message: str
    steps: int | None
    tokens: int | None = Field(description="Of all kinds; null when not known.")
    cost: float | None


class SessionsReply(Reply):
    """A page of sessions, the last changed first."""

    sessions: list[ListedSessionReply]
    cursor: str | None
    unread: int = Field(0, description="Parts of the store that are missing: their node of a cluster is away.")


class StateReply(SessionReply):
    """A session with its whole state."""

    state: dict[str, Any]


class MessagesReply(Reply):
    """Messages of the conversation, the oldest first."""

    messages: list[Message]
    total: int


class ExecutionsReply(Reply):
    """The executions of a session whose results are kept, the oldest first."""

    executions: list[ResultReply]


class ExecutionReply(Reply):
    """An execution."""

    session_id: str
    execution_id: str
    ended: bool
    result: ResultReply | None


class StepsReply(Reply):
    """The steps of an execution."""

    steps: list[StepExecution]


class TreeReply(SessionReply):
    """A session with the sessions that its agents have started."""

    steps: int
    tokens: int
    cost: float | None
    children: list[TreeReply]


class StopReply(Reply):
    """The effect of a stop."""

    stopped: bool = Field(description="False: nothing was running, or it has not ended yet.")
    result: ResultReply | None


class CallEffectReply(Reply):
    """A call with an effect that a fork leaves as it is."""

    execution_id: str
    step: int
    call_id: str
    tool: str
    effect: str = Field(description='keyed, lookup or unsafe; "" where it is not known.')
    outcome: str = Field(description="ok, error or unknown.")


class ForkReply(Reply):
    """A fork."""

    session_id: str
    effects_after: list[CallEffectReply] = Field(
        description="Calls with effects that its source has made behind the step that it was made of."
    )
    notice: str | None = Field(description="Why it cannot go on yet: no worker has the agent.")


class SnapshotReply(Reply):
    """A session as one document."""

    format: str
    format_version: int
    session_id: str
    version: int
    agent: str
    definition: str = Field(description='The plain data of an agent of the session runtime; "" for any other.')
    status: str = Field(description="active, suspended, completed, failed or deleted.")
    labels: dict[str, str]
    tag: str
    tools: list[str] = Field(description="Names of the tools that the agent had.")
    created_at: datetime
    stripped: list[str] = Field(description="Keys of the metadata that name callbacks, and were left out.")
    state: dict[str, Any]


class StepStateReply(Reply):
    """The state of a session as a step has committed it."""

    state: dict[str, Any]


class StepRequestReply(Reply):
    """The request that the model saw in a step."""

    session_id: str
    execution_id: str
    step: int
    agent: str = Field(description="Empty: it is not known.")
    model: str
    system_prompt: str | None = Field(description="null: it is not kept.")
    messages: list[Message] | None = Field(description="Without the system prompt; null: they are not kept.")
    tools: list[dict[str, Any]] | None = Field(
        description="Name, description and JSON Schema of the parameters; null: they are not kept."
    )
    settings: dict[str, Any] = Field(description="Of the session, added to those of the agent.")
    response_format: dict[str, Any] | None
    not_kept: list[str] = Field(description="Names of values that are not kept any more.")
    notes: list[str] = Field(description="What else keeps this from being the request to the letter.")


class TraceReply(Trace):
    """An execution as sinks of traces get it."""


class SpanReply(Reply):
    """A time in which one thing happened."""

    id: str = Field(description="Unique in the execution, and the same whenever the timeline is read.")
    kind: str = Field(description="queue, model, tool, child, request, provider, delay, lost, hold or message.")
    parent: str | None = Field(description="The span that it belongs to.")
    name: str = Field(description="Of the model, the tool, or the kind of request.")
    note: str = Field(description="A short sentence for people.")
    started_at: datetime
    ended_at: datetime | None = Field(description="null: it still goes on.")
    outcome: str | None = Field(
        description=(
            "ok, error, unknown, not_run or blocked; lost or void for what does not count; open, answered, expired or "
            "cancelled of a request."
        )
    )
    tokens: int | None = Field(description="Of all kinds; null when not known.")
    cost: float | None = Field(description="US dollars; null when not known.")
    session: str | None = Field(description="The child session.")
    request: str | None = Field(description="The id of the request.")
    data: dict[str, Any] | None = Field(description="With data=true: what was given, said and answered.")


class TimelineStepReply(Reply):
    """A step with its spans."""

    number: int
    status: str = Field(description="committed, running, waiting, due, or ended: before its commit.")
    started_at: datetime | None
    ended_at: datetime | None
    model: str | None
    finish_reason: str | None
    tokens: int | None
    cost: float | None
    attempts: int | None = Field(description="How often a worker took it, where workers were lost; null: not known.")
    worker: str | None
    error: str | None
    spans: list[SpanReply] = Field(description="By their beginnings; those with a parent follow it.")


class TimelineReply(Reply):
    """The latest execution as steps and spans of time."""

    session_id: str
    execution_id: str = Field(description="Empty for a session that has had no execution.")
    agent: str
    status: SessionState
    now: datetime = Field(description="The time of Redis.")
    submitted_at: datetime | None
    ended_at: datetime | None
    total_steps: int = Field(description="Committed steps.")
    next_step: int | None = Field(description="Where the next page begins; null at the end.")
    steps: list[TimelineStepReply]


class ReasonReply(Reply):
    """How many sessions wait for one thing."""

    reason: str = Field(
        description="running, queue, person, child, service, provider, delay, held, paused, concurrency, spend_cap, "
        "no_worker or parked."
    )
    count: int
    sentence: str = Field(description="The count in words, for people.")


class WaitingReply(Reply):
    """How many sessions wait for what, of those whose executions have not ended."""

    total: int = Field(description="Sessions whose executions have not ended, of all agents.")
    counted: int = Field(description="How many of them were looked at; those that are due first.")
    is_complete: bool = Field(description="Whether all were looked at.")
    now: datetime = Field(description="The time of Redis.")
    reasons: list[ReasonReply] = Field(description="Each reason, also with 0.")


class BucketReply(Reply):
    """The requests to one model, at one address and with one key or group, which are counted together."""

    model: str
    endpoint: str = Field(description="Base URL; empty: the provider's own.")
    group: str = Field(description="The group of agents, or ~ and digits that stand for a key.")
    state: str = Field(description="open, slow, waiting, away, quota or closed.")
    sentence: str = Field(description="The state in words, with what frees it.")
    limit: dict[str, Any] | None = Field(description="As it was set, with by and since.")
    learned: list[dict[str, Any]] = Field(description="What the workers have found: counts, per_minute, source, at.")
    in_flight: int = Field(description="Requests that have not been answered.")
    waiting: int = Field(description="Sessions that wait for their turn.")


class LimitsReply(Reply):
    """All buckets that have a limit or have learned one, and limits that nothing uses yet."""

    limits: list[BucketReply]


class PartReply(Reply):
    """A part of a concurrency limit: all, or one value of a label."""

    name: str = Field(description="Empty: all; else the label with its value, as customer=acme.")
    held: int = Field(description="Steps and calls that run.")
    waiting: int = Field(description="Sessions that wait.")


class ConcurrencyReply(Reply):
    """A concurrency limit, with what runs and waits."""

    name: str
    total: int | None = Field(description="Most at a time; null: no limit in all.")
    per: dict[str, int] = Field(description="Most at a time for each value of a label, by its key.")
    by: str = Field(description="Who has set it.")
    since: datetime
    parts: list[PartReply] = Field(description="All, and the values of labels for which somebody waits, up to 100.")


class ConcurrencyLimitsReply(Reply):
    """The concurrency limits, by name."""

    concurrency: list[ConcurrencyReply]


class SpentReply(Reply):
    """The money that was spent of a spend cap in the present period."""

    value: str = Field(description="Of the cap's label; empty without one.")
    usd: float = Field(description="US dollars, spent and reserved.")
    most: float | None = Field(description="The amount; null: not capped any more.")


class CapReply(Reply):
    """A spend cap, with what was spent in the present period."""

    name: str
    usd: float | None = Field(description="US dollars in each period; null: only those of values.")
    per: str = Field(description="hour, day or month.")
    zone: str
    agent: str = Field(description="Empty: of all agents.")
    label: str = Field(description="Its values spend each for themselves; empty: all together.")
    values: dict[str, float] = Field(description="Amounts of values of the label that have another one.")
    then: str = Field(description="wait or stop.")
    by: str = Field(description="Who has set it.")
    since: datetime
    spent: list[SpentReply] = Field(description="Those who have spent most first, up to 100.")
    ends_at: datetime = Field(description="When the present period ends.")


class CapsReply(Reply):
    """The spend caps, by name."""

    caps: list[CapReply]


class ShareReply(Reply):
    """A share of which steps wait."""

    share: str = Field(description="The value of the label; empty: the sessions without it.")
    weight: float
    waiting: dict[str, int] = Field(description="Steps that wait, by the priority of their sessions.")


class FairSharesReply(Reply):
    """How the slots of the fleet are shared."""

    label: str
    weights: dict[str, float]
    by: str = Field(description="Who has set it.")
    since: datetime


class SharesReply(Reply):
    """The fair shares, and whose steps wait."""

    shares: FairSharesReply | None = Field(description="null: none are set.")
    waiting: list[ShareReply] = Field(description="Those with most waiting steps first, up to 100.")


class PausesReply(Reply):
    """The pauses that have not ended, the oldest first."""

    pauses: list[dict[str, Any]] = Field(description="Each with kind, name, reason, since, until, by and tell.")


class ScheduleReply(Reply):
    """A schedule, and what became of its slots."""

    name: str
    cron: str
    zone: str
    agent: str
    message: str
    session: str | None = Field(description="null: a new session for each slot.")
    overlap: str = Field(description="skip or queue.")
    missed: str | int = Field(description="none, one, or a number.")
    jitter_seconds: float
    next_at: datetime | None = Field(
        description="When the next slot begins, with its jitter. null: it has none any more."
    )
    waiting: list[datetime] = Field(description="Slots that follow when the session of the one before has ended.")
    last: dict[str, Any] | None = Field(
        description="The slot that was submitted or refused last: slot, at, session_id, refused."
    )
    submitted: int = Field(description="Slots that were submitted.")
    skipped: int = Field(description="Slots left out, as the one before was active.")
    missed_slots: int = Field(description="Slots left out, as they were late.")
    refused: int = Field(description="Slots that their session has refused.")
    by: str
    since: datetime
    deployed: bool = Field(description="It is one of an agent in the code, as that was deployed last.")
    revision: int


class SchedulesReply(Reply):
    """The schedules by name."""

    schedules: list[ScheduleReply]


class NotesReply(Reply):
    """Sentences about what may not be meant; none when all is well."""

    notes: list[str]


class ChangedReply(Reply):
    """Whether an action changed anything."""

    changed: bool


class PlacedReply(Reply):
    """The place of a message now."""

    placed: str = Field(description="starts, joins, queued or held.")


class WaitingMessageReply(Reply):
    """A message that has not been delivered."""

    operation_id: str
    text: str
    when: str = Field(description="steer, queue or interrupt.")
    placed: str = Field(description="joins: it waits for the running step; queued or held: for an execution.")
    at: datetime | None
    by: str = Field(description="Who has sent it; empty where nobody has said so.")


class QueueReply(Reply):
    """The messages that wait in a session, in the order of their delivery."""

    messages: list[WaitingMessageReply]
    held: str | None = Field(
        description="How the last execution has ended, so that the queue waits; null: it is not held."
    )


class AnswerReply(Reply):
    """The effect of an answer."""

    session_id: str
    outcome: str = Field(description="woken, recorded or again.")
    requests: list[str]


class GrantsReply(Reply):
    """Remembered approvals that count now."""

    grants: list[Grant]


class TokenReply(Reply):
    """A signed token."""

    token: str


class NamedReply(Reply):
    """Facts by name."""


class HealthReply(Reply):
    """Whether the interface and its Redis answer, and the version of this process."""

    ok: bool
    version: str


class OutcomeReply(Reply):
    """The effect of an answer that a token allowed."""

    outcome: str = Field(description="woken, recorded or again.")
