"""Storing sessions and steps: Redis or memory under one protocol."""

from .children.links import read_link
from .children.making import NO_CHILDREN, ChildPlan, NewChild
from .children.trees import TreeNode
from .event_records import EXECUTION_ENDS, Event, EventType, NewEvent
from .housekeeping.agent_queues import AgentQueues
from .housekeeping.registry import offered_queues
from .housekeeping.sweeps import QueueSnapshot
from .journal import BeginRecord, Journal
from .live.values import Attempt, LiveDelta, NewDelta, StreamPosition, entry_order
from .records import (
    LAST_STEP,
    ActionResult,
    Claim,
    Claimed,
    ClaimResult,
    Committed,
    Hold,
    InboxKind,
    LoadedSession,
    NextState,
    NotClaimed,
    NotClaimedReason,
    Operation,
    Renewal,
    Snapshot,
    StepRef,
    Suspect,
    SweepResult,
    Transition,
    new_change_id,
    new_claim_id,
)
from .requests.records import (
    AnswerAction,
    AnswerResult,
    CheckAnswer,
    FoundRequest,
    OpenCount,
    RequestFilter,
    RequestPage,
)
from .session_records import (
    REQUEST_TASK,
    REQUEST_WEBHOOK,
    Callback,
    DelayedStep,
    Header,
    Result,
    SessionState,
    SessionSummary,
    StepFacts,
)
from .sessions.whole_sessions import Saved, WholeSession
from .steps.journals import BeginResult
from .steps.step_requests import OpenedRequests, StoppedChildren
from .steps.store import DatabaseStepStore, StepStore
from .steps.waits import RefusedWait, StoredWait, WaitResult
from .store import Store, memory_store, redis_store

__all__ = [
    "EXECUTION_ENDS",
    "LAST_STEP",
    "NO_CHILDREN",
    "REQUEST_TASK",
    "REQUEST_WEBHOOK",
    "ActionResult",
    "AgentQueues",
    "AnswerAction",
    "AnswerResult",
    "Attempt",
    "BeginRecord",
    "BeginResult",
    "Callback",
    "CheckAnswer",
    "ChildPlan",
    "Claim",
    "ClaimResult",
    "Claimed",
    "Committed",
    "DatabaseStepStore",
    "DelayedStep",
    "Event",
    "EventType",
    "FoundRequest",
    "Header",
    "Hold",
    "InboxKind",
    "Journal",
    "LiveDelta",
    "LoadedSession",
    "NewChild",
    "NewDelta",
    "NewEvent",
    "NextState",
    "NotClaimed",
    "NotClaimedReason",
    "OpenCount",
    "OpenedRequests",
    "Operation",
    "QueueSnapshot",
    "RefusedWait",
    "Renewal",
    "RequestFilter",
    "RequestPage",
    "Result",
    "Saved",
    "SessionState",
    "SessionSummary",
    "Snapshot",
    "StepFacts",
    "StepRef",
    "StepStore",
    "StoppedChildren",
    "Store",
    "StoredWait",
    "StreamPosition",
    "Suspect",
    "SweepResult",
    "Transition",
    "TreeNode",
    "WaitResult",
    "WholeSession",
    "entry_order",
    "memory_store",
    "new_change_id",
    "new_claim_id",
    "offered_queues",
    "read_link",
    "redis_store",
]
