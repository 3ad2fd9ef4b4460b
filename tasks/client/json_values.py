"""JSON values of all that a client returns: for `--json` of the command line, and for HTTP. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...config.settings import DEFAULT_QUEUE
from ...worker.moments import moment

if TYPE_CHECKING:
    from ...worker.flow.caps import CapStatus
    from ...worker.flow.concurrency import ConcurrencyStatus
    from ...worker.flow.schedules import ScheduleStatus
    from ...worker.flow.shares import SharesStatus
    from ...worker.flow.values import BucketStatus, FleetValue, Pause
    from ...worker.state.agent_state import AgentState
    from ...worker.store.children.trees import TreeNode
    from ...worker.store.event_records import Event
    from ...worker.store.live.streams import LiveDelta
    from ...worker.store.requests.records import AnswerResult, FoundRequest, LaterMessage
    from ...worker.store.session_records import Header, Result
    from ..observability.timeline.values import Span, Timeline, TimelineStep
    from ..observability.waiting_counts import WaitingCounts
    from .trees import TreeEvent

_NOT_SHOWN: Final = frozenset({"operation_id", "retries"})


def event_value(event: Event) -> dict[str, Any]:
    """An event as JSON."""
    return {
        "id": event.id,
        "type": event.type,
        "at": moment(event.at_ms),
        "session_id": event.session_id,
        "execution_id": event.execution_id,
        "step": event.step,
        "data": dict(event.data),
    }


def delta_value(delta: LiveDelta) -> dict[str, Any]:
    """A piece of live text as JSON; with `data` where a tool has emitted data."""
    value = {
        "execution_id": delta.execution_id,
        "step": delta.step,
        "attempt": delta.attempt,
        "call": delta.call,
        "part": delta.part,
        "offset": delta.offset,
        "text": delta.text,
    }
    return value if delta.data is None else {**value, "data": delta.data}


def result_value(result: Result) -> dict[str, Any]:
    """A result as JSON."""
    return {name: value for name, value in result.to_dict().items() if name not in _NOT_SHOWN}


def header_value(header: Header) -> dict[str, Any]:
    """A session without its content, as JSON."""
    return {
        "session_id": header.session_id,
        "agent": header.agent,
        "status": header.status,
        "session_status": header.session_status,
        "forked_from": header.forked_from or None,
        "execution_id": header.execution_id,
        "step": header.step,
        "version": header.version,
        "created_at": moment(header.created_ms),
        "updated_at": moment(header.updated_ms),
        "problem": header.problem,
        "unoffered_since": moment(header.unoffered_since_ms) if header.unoffered_since_ms else None,
        "history_lost": f"{header.history_lost.describe()}." if header.history_lost is not None else None,
        "labels": dict(header.labels),
        "confirmed": header.confirmed,
        "is_archived": header.is_archived,
    }


def session_value(header: Header, state: AgentState, reason: str) -> dict[str, Any]:
    """A session with its whole state, as JSON."""
    return {**header_value(header), "reason": reason, "state": json.loads(state.to_json())}


def found_value(found: FoundRequest) -> dict[str, Any]:
    """A request as JSON: in full where it is stored in full, with what became of it."""
    shown = (found.request or found.summary).to_dict()
    answer = found.answer or found.resolution
    if answer is not None:
        shown["answer"] = answer.to_dict()
    if found.status == "open":
        shown |= {"messages": [_later_value(each) for each in found.messages], "newest_message": found.newest_message}
    return {**shown, "status": found.status.value}


def _later_value(message: LaterMessage) -> dict[str, Any]:
    return {
        "number": message.number,
        "session_id": message.session_id,
        "operation_id": message.operation_id,
        "text": message.text,
        "at": moment(message.at_ms) if message.at_ms else None,
    }


def answer_value(session_id: str, result: AnswerResult) -> dict[str, Any]:
    """The reply to an answer as JSON."""
    return {"session_id": session_id, "outcome": result.outcome, "requests": list(result.requests)}


def tree_value(tree: TreeNode, reasons: Mapping[str, str]) -> dict[str, Any]:
    """A tree as JSON; each session holds those below it."""
    return {
        **header_value(tree.header),
        "steps": tree.steps,
        "tokens": tree.tokens,
        "cost": tree.cost,
        "reason": reasons.get(tree.session_id, ""),
        "children": [tree_value(child, reasons) for child in tree.children],
    }


def tree_event_value(found: TreeEvent) -> dict[str, Any]:
    """An event of a tree as JSON, with the sessions from the root down to its own."""
    return {**event_value(found.event), "path": list(found.path), "agent": found.agent}


def timeline_value(timeline: Timeline) -> dict[str, Any]:
    """A timeline as JSON; each step holds its spans."""
    return {
        "session_id": timeline.session_id,
        "execution_id": timeline.execution_id,
        "agent": timeline.agent,
        "status": timeline.status,
        "now": timeline.now,
        "submitted_at": timeline.submitted_at,
        "ended_at": timeline.ended_at,
        "total_steps": timeline.total_steps,
        "next_step": timeline.next_step,
        "steps": [_step_value(step) for step in timeline.steps],
    }


def _step_value(step: TimelineStep) -> dict[str, Any]:
    return {
        "number": step.number,
        "status": step.status,
        "started_at": step.started_at,
        "ended_at": step.ended_at,
        "model": step.model,
        "finish_reason": step.finish_reason,
        "tokens": step.tokens,
        "cost": step.cost,
        "attempts": step.attempts,
        "worker": step.worker,
        "error": step.error,
        "spans": [_span_value(span) for span in step.spans],
    }


def _span_value(span: Span) -> dict[str, Any]:
    return {
        "id": span.id,
        "kind": span.kind,
        "parent": span.parent,
        "name": span.name,
        "note": span.note,
        "started_at": span.started_at,
        "ended_at": span.ended_at,
        "outcome": span.outcome,
        "tokens": span.tokens,
        "cost": span.cost,
        "session": span.session,
        "request": span.request,
        "data": None if span.data is None else dict(span.data),
    }


def waiting_value(counts: WaitingCounts) -> dict[str, Any]:
    """How many sessions wait for what, as JSON."""
    return {
        "total": counts.total,
        "counted": counts.counted,
        "is_complete": counts.is_complete,
        "now": counts.now,
        "reasons": [{"reason": each.reason, "count": each.count, "sentence": each.sentence} for each in counts.reasons],
    }


def bucket_value(status: BucketStatus) -> dict[str, Any]:
    """A bucket as JSON: its limits, set and learned, and what it does with requests now."""
    from ...worker.engine.flow_texts import bucket_state

    state, sentence = bucket_state(status)
    return {
        **dataclasses.asdict(status.bucket),
        "state": state,
        "sentence": sentence,
        "limit": status.limit and _stored_value(status.limit),
        "learned": [
            {"counts": each.dimension, "per_minute": each.per_minute, "source": each.source, "at": moment(each.at_ms)}
            for each in status.learned
        ],
        "in_flight": status.in_flight,
        "waiting": status.waiting,
    }


def concurrency_value(status: ConcurrencyStatus) -> dict[str, Any]:
    """A concurrency limit as JSON, with what runs and waits."""
    return {**_stored_value(status.limit), "parts": [dataclasses.asdict(part) for part in status.parts]}


def cap_value(status: CapStatus) -> dict[str, Any]:
    """A spend cap as JSON, with what was spent in the present period."""
    spent = [dataclasses.asdict(each) for each in status.spent]
    return {**_stored_value(status.cap), "spent": spent, "ends_at": moment(status.ends_ms)}


def shares_value(status: SharesStatus) -> dict[str, Any]:
    """The fair shares as JSON, with the steps that wait."""
    waiting = [{"share": each.share, "weight": each.weight, "waiting": {**each.waiting}} for each in status.waiting]
    return {"shares": status.shares and _stored_value(status.shares), "waiting": waiting}


def pause_value(pause: Pause) -> dict[str, Any]:
    """A pause as JSON."""
    return {**_stored_value(pause), "name": pause.name or DEFAULT_QUEUE, "until": pause.until}


def schedule_value(status: ScheduleStatus) -> dict[str, Any]:
    """A schedule as JSON, with its next slot and what became of those before."""
    schedule, last = status.schedule, status.last
    return {
        **schedule.to_dict(),
        "next_at": None if status.slot_ms is None else moment(schedule.begin_ms(status.slot_ms)),
        "waiting": [moment(each) for each in status.waiting],
        "last": last
        and {
            "slot": moment(last.slot_ms),
            "at": moment(last.at_ms),
            "session_id": last.session_id or None,
            "refused": last.refused or None,
        },
        "submitted": status.submitted,
        "skipped": status.skipped,
        "missed_slots": status.missed,
        "refused": status.refused,
        "by": status.by,
        "since": moment(status.since_ms),
        "deployed": bool(status.deployed),
        "revision": status.revision,
    }


def _stored_value(stored: FleetValue | Pause) -> dict[str, Any]:
    value = stored.to_dict()
    value["since"] = moment(value.pop("since_ms"))
    return value
