"""A store with an archive, and one session that moves between them."""

from __future__ import annotations

from typing import Any

from celery_agents.worker.archive.archive import open_archive
from celery_agents.worker.archive.rows import RowState, SessionKey
from celery_agents.worker.store.archiving.documents import Document, read_document
from celery_agents.worker.store.archiving.moving import Archiver, MoveOutcome
from celery_agents.worker.store.database import Database

from .asking import failing_transition
from .store import Bench, step_transition


class ArchiveLab:
    """A bench with an archive."""

    def __init__(self, database: Database, url: str, **settings: Any) -> None:
        self.bench = Bench(database, archive_url=url, **settings)
        self.archive = open_archive(url)
        self.store = self.bench.another()
        self.store.reach(self.archive)
        assert self.store.archiver is not None
        self.archiver: Archiver = self.store.archiver

    @property
    def session(self) -> str:
        return self.bench.session

    @property
    def key(self) -> SessionKey:
        created = self.bench.database("HGET", self.names.session, "created")
        return SessionKey(self.session, int(created))

    @property
    def names(self) -> Any:
        return self.bench.store.context.keys(self.session)

    def end(self, *, steps: int = 2, failed: bool = False, **submitted: Any) -> None:
        """A session whose execution has ended."""
        self.bench.submit(**submitted)
        for number in range(1, steps + 1):
            claimed = self.bench.claim(number)
            if failed and number == steps:
                transition = failing_transition(claimed)
            else:
                transition = step_transition(claimed, final=number == steps)
            self.bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)

    def move(self) -> MoveOutcome:
        return self.archiver.move(self.session)

    def document(self) -> Document | None:
        scope = self.bench.store.context.session(self.session)
        return read_document(scope, self.bench.spy.inner.pipeline)

    def everything(self) -> dict[str, Any]:
        """All keys of the session, as they are, but for the field that tells of the row, and its places in indexes."""
        found: dict[str, Any] = {}
        for key in self.all_keys():
            kind = self.bench.database("TYPE", key)
            if kind == b"hash":
                flat = self.bench.database("HGETALL", key)
                values = dict(zip(flat[::2], flat[1::2], strict=True))
                values.pop(b"archived", None)
                found[key] = values
            elif kind == b"list":
                found[key] = self.bench.database("LRANGE", key, 0, -1)
            elif kind == b"stream":
                found[key] = self.bench.database("XRANGE", key, "-", "+")
        shard = self.names.shard
        for name in ("sessions", "due", "delayed", "failed", "ending", "children", "callbacks", "requests", "labels"):
            members = self.bench.database("ZRANGEBYSCORE", getattr(shard, name), "-inf", "+inf")
            found[name] = [each for each in members if self.session.encode() in each]
        found["score"] = self.bench.database("ZSCORE", shard.sessions, self.session)
        return found

    def all_keys(self) -> list[str]:
        state = self.store.sessions.load(self.session).state
        keys = self.names
        execution = self.bench.execution
        named = [keys.session, keys.ctl, keys.inbox, keys.old_values, keys.events]
        named += [keys.section(name, section.generation) for name, section in state.store.sections.items()]
        named += [keys.part(name, items.generation) for name, items in state.part_lists.items()]
        named += [keys.steps(execution), *(keys.journal(execution, step) for step in range(9))]
        # The journals of committed steps live for a minute, and are not kept.
        return [each for each in named if ":j:" not in each or self.bench.database("PTTL", each) < 0]

    def row_state(self, key: SessionKey) -> RowState | None:
        """The state of the row of a session; None where there is none."""
        row = self.archive.row(key)
        return None if row is None else row.state

    def restore(self) -> None:
        """Write the session back to Redis."""
        assert self.store.archived is not None
        assert self.store.archived.restore(self.session)
