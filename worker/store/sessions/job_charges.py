"""Charging a session for a job at a provider that no step waited for any more, and that had answered all the same.

    WATCH session, ctl, journal · read · MULTI the execution with the charge, its record · out of `jobs`, into
    `old_jobs` · the job's end · EXEC

The session changes with the index of its shard: it is charged once, whoever is killed and however many clean up. A job
whose journal is there has ended with that: a retry does not take its answer, nor does a worker that slept bring it.
"""

from __future__ import annotations

from pydantic import ValidationError

from ...errors import StateUnreadable
from ...state.execution.inference import InferenceResponse
from ...state.execution.usage import InferenceUsage
from .. import fields
from ..context import SessionScope, StorePart
from ..database import Command, WatchedTransaction, Word
from ..journal import CHARGED, JOB
from ..records import NextState
from ..session_records import Result
from ..steps.provider_jobs import JobEntry
from .watched_sessions import WatchedSession


class JobChargeVerbs(StorePart):
    """Charging sessions for jobs that were cancelled."""

    def charge_job(self, session_id: str, entry: JobEntry, answered: InferenceResponse) -> None:
        """Charge the execution of a cancelled job for its answer; of the job only the provider's copy is left.

        Does so once. An execution that is not kept any more is not charged.

        Args:
            answered: Tells usage and cost; without either, the session stays as it is.
        Raises:
            SessionNotFound: There is no such session; nothing was written.
            StateUnreadable: It cannot be read; nothing was written.
            StoreFull: Nothing was written.
            StoreUnavailable: No answer in time; asking again is safe.
        """
        scope = self._context.session(session_id)
        scope.act_once(lambda: _charge(scope, entry, answered), "be charged for a job")


def _charge(scope: SessionScope, entry: JobEntry, answered: InferenceResponse) -> None:
    keys, shard = scope.keys, scope.keys.shard
    journal, job = keys.journal(entry.execution_id, entry.step), f"{JOB}{entry.job}"
    reads: list[Command] = [
        *WatchedSession.reads(scope),
        ("HGET", keys.session, f"e:{entry.execution_id}"),
        ("HGET", shard.jobs, entry.id),
        ("HGET", shard.old_jobs, entry.id),
        ("HMGET", journal, f"{job}:id", f"{job}:end"),
    ]
    # Who charges it changes the session, too; so the index, which all sessions change, need not be watched.
    with scope.database.watch("charge.read", (keys.session, keys.ctl, journal), reads) as watched:
        *session, record, indexed, copy, (created, end) = watched.replies
        found = WatchedSession.parse(scope, session)
        if indexed is None:
            return
        if copy is not None:  # it was collected or charged, and a worker that slept has put it back since
            watched.commit("charge.exec", [("HDEL", shard.jobs, entry.id)])
            return
        commands: list[Command] = [("HDEL", shard.jobs, entry.id), ("HSET", shard.old_jobs, entry.id, entry.to_json())]
        if entry.is_of(created) and end is None:
            commands.append(("HSET", journal, f"{job}:end", f"{found.now_ms} {CHARGED}"))
        if answered.cost or answered.usage.total:
            commands += _charge_commands(found, entry, answered, record, watched)
        watched.commit("charge.exec", commands)


def _charge_commands(
    found: WatchedSession,
    entry: JobEntry,
    answered: InferenceResponse,
    record: bytes | None,
    watched: WatchedTransaction,
) -> list[Command]:
    """Commands that change the state, where the execution is its last one, and the record of one that has ended."""
    before, words = found.load_state(watched), list[Word]()
    execution = before.execution
    if record is not None:
        words += [f"e:{entry.execution_id}", _charged_record(found.scope.session_id, record, answered)]
    if execution is None or execution.execution_id != entry.execution_id:
        return [("HSET", found.scope.keys.session, *words)] if words else []
    after = before.with_context_and_execution(before.context, execution.with_charge(answered.usage, answered.cost))
    if found.control.phase == "parked":  # it stays so: a save would tell what its execution says
        words += ["status", "parked"]
    found = found.with_old_values(watched)
    return found.prepare_save(before, NextState(state=after), work_changed=False, extra=words).commands


def _charged_record(session_id: str, record: bytes, answered: InferenceResponse) -> bytes:
    """The record of an execution that has ended, with the charge."""
    stored = fields.read_json(record, "the record of an execution")
    known = Result.from_dict(session_id, stored)
    try:
        usage = InferenceUsage.from_dict(dict(known.usage)) + answered.usage
    except ValidationError:
        raise StateUnreadable("the record of an execution", "its usage cannot be read") from None
    cost = answered.cost if known.cost is None else known.cost + (answered.cost or 0.0)
    return fields.to_json({**stored, "usage": usage.to_dict(), "cost": cost})
