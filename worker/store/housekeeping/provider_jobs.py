"""Jobs at providers, over all sessions: which there are, whose step is past, and whose session a provider wakes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...errors import StateUnreadable
from ...flow.values import AT_PROVIDER
from .. import fields
from ..context import StorePart, TooManyConflicts
from ..database import Command, Guard
from ..flow.forwarding import TOLD, wake_put_off
from ..journal import JOB
from ..keys import ShardKeys
from ..records import StepRef
from ..steps.provider_jobs import JobEntry

_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that no step waits for any more.

    Attributes:
        is_open: Its answer was not journaled: it has to be cancelled. If not, only the provider's copy is left.
    """

    entry: JobEntry
    is_open: bool


class ProviderJobListVerbs(StorePart):
    """Listing, waking and forgetting jobs at providers."""

    def provider_jobs(self, shards: Sequence[ShardKeys] | None = None) -> Iterator[JobEntry]:
        """Give the jobs whose answers are not journaled; those of steps that are past are among them for a while.

        Args:
            shards: None: all.
        """
        for key in self._filled([shard.jobs for shard in (self._context.shards if shards is None else shards)]):
            yield from self._entries(key)

    def past_jobs(self, shards: Sequence[ShardKeys], agents: Collection[str]) -> Iterator[PastJob]:
        """Give the jobs of these agents that no step waits for: they are to be cancelled and forgotten."""
        for key in self._filled([shard.old_jobs for shard in shards]):
            yield from (PastJob(each, is_open=False) for each in self._entries(key) if each.agent in agents)
        page: list[JobEntry] = []
        for entry in self.provider_jobs(shards):
            page += [entry] if entry.agent in agents else []
            if len(page) == _PAGE:
                yield from self._past_of(page)
                page = []
        yield from self._past_of(page)

    def forget_job(self, entry: JobEntry) -> None:
        """Remove a job from the index: it is cancelled, and the provider keeps nothing of it that we want deleted."""
        shard = self._context.keys(entry.session_id).shard
        commands: list[Command] = [("HDEL", shard.jobs, entry.id), ("HDEL", shard.old_jobs, entry.id)]
        self._context.database.pipeline("job.forget", commands)

    def wake_job(self, job_id: str) -> tuple[JobEntry, StepRef | None] | None:
        """Let the step of a job become due now.

        Args:
            job_id: The provider's.
        Returns:
            The job, and the step where the caller has to publish it. None: no step waits for such a job.
        """
        reads: list[Command] = [("HGET", shard.jobs, job_id) for shard in self._context.shards]
        stored = next((each for each in self._context.database.pipeline("job.find", reads) if each is not None), None)
        if stored is None:
            return None
        entry, woken = JobEntry.from_stored(stored), None
        scope = self._context.session(entry.session_id)
        with contextlib.suppress(TooManyConflicts):  # it comes at its own time
            woken = wake_put_off(scope, AT_PROVIDER)
            if woken is None:  # its step may be about to be put off, and looks at this note behind it
                here: Guard = (
                    ("HMGET", scope.keys.ctl, "execution", "step", "phase"), (entry.execution_id, entry.step, "run")
                )  # fmt: skip
                self._context.database.compare_and_apply("job.told", [here], [("HSET", scope.keys.ctl, TOLD, 1)])
                woken = wake_put_off(scope, AT_PROVIDER)
        return entry, None if woken is None else woken.publish

    def _filled(self, keys: Sequence[str]) -> list[str]:
        """Filter indexes by whether they hold anything, in one round trip: most hold nothing, and are not scanned."""
        lengths = self._context.database.pipeline("job.counts", [("HLEN", key) for key in keys])
        return [key for key, length in zip(keys, lengths, strict=True) if length]

    def _entries(self, key: str) -> Iterator[JobEntry]:
        cursor: str | int = 0
        seen: set[bytes] = set()
        while True:
            found, flat = self._context.database.pipeline("job.scan", [("HSCAN", key, cursor, "COUNT", _PAGE)])[0]
            for job_id, raw in zip(flat[::2], flat[1::2], strict=True):
                if job_id not in seen:  # a scan may give one twice
                    seen.add(job_id)
                    with contextlib.suppress(StateUnreadable):
                        yield JobEntry.from_stored(raw)
            cursor = int(found)
            if not cursor:
                return

    def _past_of(self, page: Sequence[JobEntry]) -> Iterator[PastJob]:
        """Filter a page by whether no step waits for a job."""
        places = [f"{JOB}{entry.job}" for entry in page]
        scopes = [self._context.session(entry.session_id) for entry in page]
        groups: list[list[Command]] = [
            [
                ("HMGET", scope.keys.ctl, "execution", "step", "phase"),
                ("HMGET", scope.keys.journal(entry.execution_id, entry.step), f"{place}:id", f"{place}:end"),
            ]
            for scope, entry, place in zip(scopes, page, places, strict=True)
        ]
        for entry, replies in zip(page, self._context.read_apart("job.places", groups), strict=True):
            if isinstance(replies, StateUnreadable):
                continue
            (execution, step, phase), (created, end) = replies
            here = (fields.text(execution), fields.number(step)) == (entry.execution_id, entry.step)
            if not here or fields.text(phase) == "end" or end is not None or not entry.is_of(created):
                yield PastJob(entry, is_open=True)
