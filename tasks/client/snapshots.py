"""The verbs of a client that take sessions elsewhere: as snapshots to go on with, and as traces to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from ...worker.errors import ActionRefused, SessionNotFound
from ...worker.state.values.ids import read_session_id
from ...worker.store.sessions.whole_sessions import WholeSession
from .inputs import check_text
from .job import Job
from .verbs import Scope, verb
from .whole_sessions import WholeSessionVerbs

if TYPE_CHECKING:
    from ...worker.capabilities.tracing.trace import Trace
    from ...worker.session.snapshots import SessionSnapshot


class SnapshotVerbs(WholeSessionVerbs):
    """Takes snapshots of sessions, and resumes them on another Redis or with the next version of the code; traces."""

    @verb(
        "GET", "/v1/sessions/{session_id}/snapshot", "take_snapshot", scope=Scope.READ,
        http={"tag": Field(max_length=200, description="A name of yours, kept with it.")},
    )  # fmt: skip
    def snapshot(self, session_id: str, *, tag: str = "") -> SessionSnapshot:
        """Take a snapshot of a session as it stands after its last commit; the session goes on.

        Metadata whose keys name callbacks in JavaScript's spelling (`onEvent`, `eventListener`, `eventHandler`,
        `doneCallback`) is left out, and named in `stripped`.

        Args:
            tag: A name of yours, kept with it.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: A part of it cannot be read.
        """
        from ...worker.session.snapshots import SessionSnapshot  # it loads the engine

        session = read_session_id(session_id)
        if tag:
            check_text("tag", tag, self.settings.max_message_bytes)
        found = self.store.sessions.whole(session)
        return SessionSnapshot.of(
            found.state,
            tools=self._tools_of(session),
            session_id=session,
            version=found.version,
            agent=found.agent,
            definition=found.definition.decode(),
            status=found.status,
            tag=tag,
        )

    @verb(
        "GET", "/v1/sessions/{session_id}/trace", "make_trace", scope=Scope.READ,
        http={
            "log_data": Field(alias="data", description="false: without what was said, given and returned."),
            "thread_id": Field(
                alias="thread", max_length=200, description="A name of yours in place of the session's id."
            ),
        },
    )  # fmt: skip
    def trace(self, session_id: str, *, log_data: bool = True, thread_id: str | None = None) -> Trace:
        """Make the trace of a session's latest execution.

        It is what a sink of `Tracing` gets, whatever sinks there are.

        Args:
            log_data: With what was said, given and returned. Secrets that this process knows are redacted.
            thread_id: In place of the session's id.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ActionRefused: It has had no execution.
            StateUnreadable: A part of it cannot be read.
        """
        from ...worker.capabilities.tracing.capability import read_report
        from ...worker.capabilities.tracing.trace import make_trace

        session = read_session_id(session_id)
        stored = self.store.sessions.load(session)
        if stored.state.execution is None:
            raise ActionRefused(f"session {session} has had no execution; send it a message first")
        link = self.store.trees.link(session)
        found = make_trace(stored.state, session, stored.agent, parent=link, log_data=log_data)
        late = self.store.sessions.read_failed_sinks(session, stored.state.execution.execution_id)
        return found.with_failures({**read_report(stored.state), **late}).in_thread(thread_id).redacted()

    def resume_snapshot(
        self,
        snapshot: SessionSnapshot | Mapping[str, Any] | str | bytes,
        *,
        session_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        merge_context: bool = True,
    ) -> Job:
        """Create a session from a snapshot, and let its execution go on if it had not ended.

        The execution begins at the step after its last commit, with its own id: the provider sees the same history, and
        keyed effects keep their keys. Requests that were open are asked again. Where the execution has ended, send a
        message.

        Args:
            snapshot: As it was returned, or as JSON.
            session_id: None: the id that the session had, which must not be in use here.
            context: Metadata for the session, merged into the snapshot's.
            merge_context: False: `context` replaces the snapshot's metadata.
        Raises:
            InvalidInput: The snapshot or the context cannot be used; nothing was written.
            SessionConflict: The id is in use.
            SessionDeleted: A session of this id was deleted here.
            StateTooNew: A newer version of this package has taken the snapshot.
        """
        from ...worker.session.snapshots import read_snapshot, restore

        found = read_snapshot(snapshot)
        name = read_session_id(session_id or found.session_id)
        state = restore(found, context, merge=merge_context)
        session = WholeSession(
            agent=found.agent, state=state, status=found.status, definition=found.definition.encode()
        )
        saved = self.store.sessions.create(name, session, queue=self._queues.queue_of(found.agent))
        self._publish(saved.publish)
        execution = saved.session.state.execution
        return Job(self.store, name, operation_id="", execution_id=execution.execution_id if execution else "")

    def _tools_of(self, session_id: str) -> list[str]:
        """Names of the tools in the definition that is stored with a session; none before its first step."""
        try:
            definition = self.store.sessions.definition(session_id)
        except SessionNotFound:
            return []
        tools = cast("list[dict[str, Any]]", definition.get("tools") or [])
        return [str(each.get("name", "")) for each in tools]
