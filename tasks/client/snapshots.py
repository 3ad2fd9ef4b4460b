"""The verbs of a client on whole sessions: clear, snapshots to go on with; earlier states, traces to look at."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from ...worker.errors import ActionRefused, InvalidInput, SessionConflict, SessionNotFound
from ...worker.state.values.frozen import FrozenMap
from ...worker.state.values.ids import read_session_id
from ...worker.store.labels import check_labels
from ...worker.store.session_records import StoredSession
from .connection import ClientConnection
from .inputs import check_text, read_address
from .job import Job
from .verbs import Scope, verb

if TYPE_CHECKING:
    from ...worker.capabilities.tracing.trace import Trace
    from ...worker.session.redis_store import RedisSessionStore
    from ...worker.session.snapshots import SessionSnapshot
    from ...worker.state.agent_state import AgentState
    from ...worker.state.past.seen_requests import ModelRequest


class SnapshotVerbs(ClientConnection):
    """Clears sessions; takes them elsewhere by snapshots, traces, and the store of the session runtime."""

    def session_store(self) -> RedisSessionStore:
        """The sessions of the workers as a store of the session runtime; it uses this client's connections."""
        from ...worker.session.redis_store import RedisSessionStore

        return RedisSessionStore(self.store, self._publish)

    @verb(
        "POST", "/v1/sessions/{session_id}/clear", "clear_session", scope=Scope.ADMIN,
        headers=("expected_version",), task=("session_id", "expected_version"),
    )  # fmt: skip
    def clear(self, session_id: str, *, expected_version: int | None = None) -> int:
        """Remove the conversation of a session; prompt, model, metadata and the count of executions stay.

        Args:
            expected_version: The version that the session must have. None: any.
        Returns:
            The version afterwards.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version; nothing was written.
            ActionRefused: An execution of it runs, waits or is parked; nothing was written.
        """
        source = read_session_id(session_id)
        while True:
            stored = self.store.sessions.load(source)
            wanted = stored.version if expected_version is None else expected_version
            cleared = replace(stored, state=stored.state.without_conversation(), version=wanted)
            try:
                return self.store.sessions.save(source, cleared).session.version
            except SessionConflict:
                if expected_version is not None:
                    raise

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
        found = self.store.sessions.load(session)
        return SessionSnapshot.of(
            found.state,
            tools=self._tools_of(session),
            session_id=session,
            version=found.version,
            agent=found.agent,
            definition=found.definition.decode(),
            status=found.status,
            labels=FrozenMap[str].of(found.labels),
            tag=tag,
        )

    @verb("GET", "/v1/sessions/{session_id}/steps/{at}/state", "get_step_state", scope=Scope.READ)
    def state(self, session_id: str, *, at: str | int | None = None) -> AgentState:
        """Read the state of a session as a step has committed it, exactly.

        Old values and replaced messages are kept up to `CELERY_AGENTS_HISTORY_BYTES` for each session; the oldest go
        first.

        Args:
            at: A step of the latest execution, from 1; `"<execution>:<step>"` for one of an earlier execution. None:
                the state that is stored now.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The session has no such step.
            NotKept: A value of that time, which the error names, is not kept. Steps that an earlier version of this
                package has committed, and those before a `clear`, are not kept at all.
            StateUnreadable: A part of it cannot be read.
        """
        session, address = read_session_id(session_id), read_address(at)
        if address is None:
            return self.store.sessions.load(session).state
        return self.store.sessions.state_at(session, address)

    @verb("GET", "/v1/sessions/{session_id}/steps/{step}/request", "get_step_request", scope=Scope.READ)
    def model_request(self, session_id: str, *, step: str | int) -> ModelRequest:
        """Read what the model saw in a step: prompt, messages, tools, model and settings.

        Messages are exact. Prompt and tools are kept when they change, so a deployment that brings others shows.
        Settings are those of the session; those that the agent has in code are not stored.

        Args:
            step: As `at` of `state`.
        Returns:
            With the names of what is not kept of it, and notes about what else keeps it from being exact.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The session has no such step.
            NotKept: Nothing of that time is kept; see `state`.
            StateUnreadable: A part of it cannot be read.
        """
        address = read_address(step, "step")
        if address is None:
            raise InvalidInput("step", step, "give the number of a step, from 1, or '<execution>:<step>'.")
        return self.store.sessions.request_at(read_session_id(session_id), address)

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
        message. The job has a notice, which is also a warning, where what goes on cannot begin yet, as without a worker
        that has registered the agent.

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
        from ...worker.session.snapshots import read_snapshot

        found = read_snapshot(snapshot)
        name = read_session_id(session_id or found.session_id)
        state = found.restored(context, merge=merge_context)
        session = StoredSession(
            agent=found.agent,
            state=state,
            status=found.status,
            definition=found.definition.encode(),
            labels=check_labels(found.labels),
        )
        queue = self._queues.queue_of(found.agent)
        if self.store.archived is not None:
            self.store.archived.put_mark(name)  # of a session there, whose id is in use although its mark has gone
        saved = self.store.sessions.create(name, session, queue=queue)
        self._publish(saved.publish)
        execution = saved.session.state.execution
        job = self._make_job(name, execution_id=execution.execution_id if execution else "")
        if execution is not None and not execution.status.is_terminal():
            job.notice = self._describe_wait(found.agent, queue, session.labels)
        if job.notice:
            warnings.warn(job.notice, stacklevel=2)
        return job

    def _tools_of(self, session_id: str) -> list[str]:
        """Names of the tools in the definition that is stored with a session; none before its first step."""
        try:
            definition = self.store.sessions.definition(session_id)
        except SessionNotFound:
            return []
        tools = cast("list[dict[str, Any]]", definition.get("tools") or [])
        return [str(each.get("name", "")) for each in tools]
