"""The jobs of a step at a provider: intended, created, ended, answered; see docs/protocol.md, "Jobs at a provider".

A job is in the journal before it is created, and its id in the shard's index together with it: who cleans up finds
there what no step waits for any more, also where the session was deleted.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from ... import crash_points
from ...errors import StateUnreadable
from ...state.values.field_types import Count, Text
from ...state.values.value import Value
from .. import fields
from ..asked import Asked
from ..context import StorePart
from ..control import interrupt_field
from ..database import Command
from ..journal import ANSWERED, JOB, SAW, JournaledJob
from ..records import Claim, claim_lost
from .journals import StepJournal

_HOLDER: Final = ("claim", "cancel", "interrupt")


class JobEntry(Value):
    """A job at a provider, as the index of its shard has it.

    Attributes:
        id: The provider's.
        handle: What its driver knows it by.
        key: Ours, the same for every worker.
        job: Its number within the step.
        since_ms: When it was created (Redis ms).
        due_ms: When its answer is there at the latest, as it was asked for (Redis ms).
    """

    id: Text
    handle: Text
    key: Text
    session_id: Text
    execution_id: Text
    step: Count
    job: Count
    agent: Text
    model: Text
    window: Text
    since_ms: Count
    due_ms: Count

    @property
    def created(self) -> bytes:
        """Id and handle as the journal has them."""
        return f"{self.id} {self.handle}".encode()

    def is_of(self, created: bytes | None) -> bool:
        """Whether a journal has this job, of which who has created it knows other details than who has found it."""
        return created is not None and created.partition(b" ")[0] == self.id.encode()

    @classmethod
    def from_stored(cls, raw: bytes) -> JobEntry:
        """Parse an entry.

        Raises:
            StateUnreadable: It is damaged.
        """
        try:
            return cls.from_json(raw)
        except ValidationError:
            raise StateUnreadable("index of jobs", "it is no job at a provider") from None


class ProviderJobVerbs(StorePart):
    """Recording what a step has asked of a provider that answers later. After `StoreUnavailable`, ask again."""

    def intend_job(self, claim: Claim, job: JournaledJob) -> bool:
        """Journal that a job is about to be created, for the first time or once more.

        Returns:
            False: A stop was asked for, or a message interrupts the step: nothing was written, and it must not be.
        Raises:
            ClaimLost: Another worker took over; nothing was written.
            StoreFull: Nothing was written.
        """
        scope, ref = self._context.session(claim.ref.session_id), claim.ref
        journal, ctl = StepJournal(scope, claim), scope.keys.ctl

        def intend() -> bool:
            # Watched: after a pause, a later claim may have created this job, or another one.
            with journal.database.watch("job.look", (ctl,), [("HMGET", ctl, *_HOLDER)]) as watched:
                holder, stop, interrupt = watched.replies[0]
                if not journal.is_held(holder):
                    raise claim_lost(claim)
                if fields.text(stop) == ref.execution_id:
                    return False
                if fields.text(interrupt) == interrupt_field(ref.execution_id, ref.step):
                    return False
                watched.commit("job.intend", [("HSET", journal.key, f"{JOB}{job.number}", job.intention)])
                return True

        may_create = scope.retry(intend, "intend a job")
        crash_points.at("p0")
        return may_create

    def keep_job(self, claim: Claim, entry: JobEntry, asked: Asked, begun: str = "") -> bytes:
        """Journal by what a job is known that was created, and put it into the index; the first one stored wins.

        Args:
            asked: What it asks the model.
            begun: `JournaledJob.intention` of a job that was not intended before; "" for others.
        Returns:
            Id and handle as they are stored, which may be another worker's: then the own job is in the index alone.
        Raises:
            StoreFull: Nothing was written; the job is there all the same.
        """
        journal = StepJournal(self._context.session(claim.ref.session_id), claim)
        name, own = f"{JOB}{entry.job}:id", entry.created
        commands: list[Command] = [
            ("HSETNX", journal.key, name, own),
            ("HSET", journal.scope.keys.shard.jobs, entry.id, entry.to_json()),
            ("HSETNX", journal.key, SAW, asked.to_stored()),
            *([("HSETNX", journal.key, f"{JOB}{entry.job}", begun)] if begun else ()),
        ]
        first, *_ = journal.write("job.keep", commands)
        crash_points.at("p2")
        return own if first else journal.read_stored(name, own)

    def end_job(self, claim: Claim, number: int, why: str, now_ms: int) -> bool:
        """Journal that a job gives the step no answer; its number says whose end it is, so that no claim is needed.

        Args:
            why: For people, redacted.
            now_ms: Redis time.
        Returns:
            False: It has an end already, perhaps an answer that another worker has journaled; that one stays.
        """
        journal = StepJournal(self._context.session(claim.ref.session_id), claim)
        record: Command = ("HSETNX", journal.key, f"{JOB}{number}:end", f"{now_ms} {why}")
        (is_first,) = journal.write("job.end", [record])
        return bool(is_first)

    def record_job_answer(self, claim: Claim, job: JournaledJob, entry: JobEntry, raw: bytes, now_ms: int) -> bytes:
        """Journal the answer of a job, once: one that was rejected since does not come back.

        Returns:
            The stored answer, which may be another worker's copy.
        Raises:
            ClaimLost: It was journaled and rejected meanwhile, by a worker that has the step.
            StoreFull: Nothing was written; the provider has the answer.
        """
        scope = self._context.session(claim.ref.session_id)
        journal, ended = StepJournal(scope, claim), f"{JOB}{job.number}:end"
        shard = scope.keys.shard

        def record() -> bytes:
            reads: list[Command] = [("HMGET", journal.key, "llm", ended), journal.place()]
            with journal.database.watch("job.look", (journal.key,), reads) as watched:
                (answer, end), place = watched.replies
                if answer is not None or end is not None:
                    if answer is None:
                        raise claim_lost(claim)
                    return answer
                commands: list[Command] = [
                    ("HSET", journal.key, "llm", raw, ended, f"{now_ms} {ANSWERED}"),
                    ("HDEL", shard.jobs, entry.id),
                    ("HSET", shard.old_jobs, entry.id, entry.to_json()),
                ]
                watched.commit("job.answer", commands)
            journal.expire_if_past(place)
            return raw

        stored = scope.apply_once(record, "an answer of a provider")
        crash_points.at("c3")
        return stored
