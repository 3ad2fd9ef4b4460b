"""Reading what does not need the state of a session: results, events, and what a step waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...state.execution.status import ExecutionStatus
from .. import fields
from ..context import StorePart
from ..database import Command, Reply
from ..event_records import Event
from ..events import parse_events
from ..keys import failed_sinks_field, joined_field
from ..safe_ends import SAFE, is_safe
from ..session_records import Result, StepFacts
from .loading import missing_error

_ACTIVE: Final = frozenset(status.value for status in ExecutionStatus if not status.is_terminal())
_FACTS: Final = (
    "execution", "step", "phase", "claim", "worker", "attempts", "delays", "not_before", "cancel", "why", "put_off",
)  # fmt: skip


class ReadVerbs(StorePart):
    """Reads. Those of results and of `read_joined` raise SessionNotFound where there is no such session any more."""

    def definition(self, session_id: str) -> dict[str, Any]:
        """Read the agent's definition as it was when the session was created."""
        session = self._context.keys(session_id).session
        (stored,) = self._context.database.pipeline("definition", [("HGET", session, "definition")])
        if stored is None:
            raise missing_error(self._context, session_id)
        return fields.read_json(stored, "definition")

    def record(self, session_id: str, execution_id: str) -> Result | None:
        """Read how an execution ended last, whether it was retried since or not; None when it never has."""
        (stored,) = self._read_fields("record", session_id, f"e:{execution_id}")
        return read_result(session_id, stored)

    def records(self, session_id: str) -> list[Result]:
        """Read how the executions that are kept have ended, the oldest first; those that never have are left out."""
        (named,) = self._read_fields("records", session_id, "executions")
        names = [f"e:{execution_id}" for execution_id in fields.strings(named)]
        if not names:
            return []
        read: Command = ("HMGET", self._context.keys(session_id).session, "version", *names)
        ((version, *stored),) = self._context.database.pipeline("records.read", [read])
        if version is None:  # it went between the two reads
            raise missing_error(self._context, session_id)
        return [found for each in stored if (found := read_result(session_id, each)) is not None]

    def read_joined(self, session_id: str, operation_id: str) -> str:
        """Read which execution a message has joined; "" while it waits in the inbox, and when it is long forgotten."""
        (execution_id,) = self._read_fields("joined", session_id, joined_field(operation_id))
        return fields.text(execution_id)

    def outcome(self, session_id: str, execution_id: str) -> Result | None:
        """Read how an execution ended; None while it has not, or continues after a retry.

        Raises:
            NotConfirmed: It has ended, and too few replicas know that.
        """
        keys = self._context.keys(session_id)
        # In this order, with status and record at one moment: else a retried execution that ends between the two reads
        # would give its former result.
        reads: list[Command] = [
            ("HGET", keys.ctl, "execution"),
            ("HMGET", keys.session, "version", f"e:{execution_id}", "status", SAFE),
        ]
        with self._context.noting() as used:
            current, (version, stored, status, safe) = self._context.database.pipeline("outcome", reads)
        if version is None:
            raise missing_error(self._context, session_id)
        is_active = fields.text(current) == execution_id and fields.text(status) in _ACTIVE
        found = None if is_active else read_result(session_id, stored)
        if found is not None and not is_safe(safe, version):
            self._context.confirm(keys.shard, used)
        return found

    def events(self, session_id: str, after: str | None = None, limit: int = 1000) -> list[Event]:
        """Read stored events after an event id; None: from the beginning."""
        first = "-" if after is None else f"({after}"
        read: Command = ("XRANGE", self._context.keys(session_id).events, first, "+", "COUNT", limit)
        (entries,) = self._context.database.pipeline("events", [read])
        return parse_events(session_id, entries)

    def latest_events(self, session_id: str, limit: int = 10) -> list[Event]:
        """Read the newest events, the oldest of them first."""
        read: Command = ("XREVRANGE", self._context.keys(session_id).events, "+", "-", "COUNT", limit)
        (entries,) = self._context.database.pipeline("events.latest", [read])
        return parse_events(session_id, list(reversed(entries)))

    def watch(self, session_id: str, after: str, block_ms: int) -> list[Event]:
        """Read events after an event id ("0": all, "$": those to come); wait no longer than `block_ms` for one."""
        stream = self._context.keys(session_id).events
        read: Command = ("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", stream, after)
        (reply,) = self._context.database.pipeline("watch", [read])
        return parse_events(session_id, reply[0][1]) if reply else []

    def note_failed_sinks(self, session_id: str, execution_id: str, failed: Mapping[str, str]) -> bool:
        """Store why sinks have failed, by their names, at a trace that they got after the execution's last commit.

        The state cannot keep them any more: a field of the session does, and goes with the record of the execution.

        Returns:
            False: The session is gone, or in the archive.
        Raises:
            StoreUnavailable: No answer in time. It may be stored; storing it again is safe.
        """
        keys = self._context.keys(session_id)
        write = ("HSET", keys.session, failed_sinks_field(execution_id), fields.to_json(dict(failed)))
        is_there = ("EXISTS", keys.ctl), (1,)  # the session's hash is there as its mark, too
        return self._context.database.compare_and_apply("trace.failed", [is_there], [write]) is not None

    def read_failed_sinks(self, session_id: str, execution_id: str) -> dict[str, str]:
        """Read why sinks have failed, by their names; empty where none has, and without a session."""
        read = ("HGET", self._context.keys(session_id).session, failed_sinks_field(execution_id))
        (stored,) = self._context.database.pipeline("trace.read", [read])
        return {} if stored is None else fields.read_json(stored, "the failed sinks of a trace")

    def step_facts(self, session_id: str) -> StepFacts:
        """Read what the session's next step waits for: who has it, and until when it is delayed.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: Its control fields are damaged.
        """
        context, keys = self._context, self._context.keys(session_id)
        reads: list[Command] = [
            ("HMGET", keys.ctl, *_FACTS),
            ("ZSCORE", keys.shard.due, session_id),
            context.clock.now(),
        ]
        control, due, now = context.database.pipeline("facts.read", reads)
        execution, step, phase, claim, worker, attempts, delays, not_before, cancel, why, put_off = control
        if execution is None:
            raise missing_error(context, session_id)
        now_ms = context.clock.milliseconds(now)
        is_put_off = bool(put_off) and fields.milliseconds(not_before) > now_ms
        return StepFacts(
            execution_id=fields.text(execution),
            step=fields.number(step),
            phase=fields.text(phase),
            claimed=bool(claim),
            worker=fields.text(worker) if claim else "",
            lease_ms=self._read_lease_ms(session_id, fields.text(claim)),
            attempts=fields.number(attempts),
            delays=fields.number(delays),
            not_before_ms=fields.milliseconds(not_before),
            due_ms=None if due is None else fields.score_ms(due),
            reason=fields.text(why) if fields.number(delays) or is_put_off else "",
            now_ms=now_ms,
            is_stopping=bool(cancel) and cancel == execution,
            put_off=fields.text(put_off) if is_put_off else "",
        )

    def _read_lease_ms(self, session_id: str, claim: str) -> int | None:
        if not claim:
            return None
        lease = self._context.keys(session_id).shard.lease(claim)
        (left,) = self._context.database.pipeline("facts.lease", [("PTTL", lease)])
        return None if left == -2 else max(0, left)

    def _read_fields(self, point: str, session_id: str, *names: str) -> list[bytes | None]:
        """Read fields of a session that has to be there."""
        read: Command = ("HMGET", self._context.keys(session_id).session, "version", *names)
        ((version, *found),) = self._context.database.pipeline(point, [read])
        if version is None:
            raise missing_error(self._context, session_id)
        return found


def read_result(session_id: str, stored: Reply) -> Result | None:
    """Parse the record of an execution; None where there is none.

    Raises:
        StateUnreadable: It is damaged.
    """
    if stored is None:
        return None
    return Result.from_dict(session_id, fields.read_json(stored, "the record of an execution"))
