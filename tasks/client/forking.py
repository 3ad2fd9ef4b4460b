"""Forks: copies of a session as it is, or as a step has committed it, with what is to be otherwise in them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydantic import Field
from pydantic_core import to_json

from ...worker.errors import ActionRefused, CeleryAgentsError, IdempotencyMismatch
from ...worker.state.codec.join import StateParts
from ...worker.state.execution.status import ExecutionStatus
from ...worker.state.execution.tool_calls import ToolOutcome
from ...worker.state.past.edits import Edit, read_edits
from ...worker.state.values.canonical import canonical_digest
from ...worker.state.values.field_types import utcnow
from ...worker.state.values.ids import ChildSessionId, ExecutionId, read_session_id
from ...worker.store.labels import check_labels
from ...worker.store.session_records import StoredSession
from ...worker.store.sessions.copying import edit_entries, go_on
from ...worker.store.sessions.past_reads import StepAddress
from ...worker.store.sessions.whole_sessions import Copy, without_execution
from .connection import ClientConnection
from .inputs import check_agent_name, check_size, check_text, derive_id, read_address
from .verbs import MOST_TEXT, Scope, verb

_WITHOUT_EFFECT: Final = "pure"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEffect:
    """A call with an effect that a fork leaves as it is.

    Attributes:
        step: Number of its step within the execution.
        effect: keyed, lookup or unsafe; "" where the definition of the session's agent does not tell it.
        outcome: ok, error or unknown.
    """

    execution_id: str
    step: int
    call_id: str
    tool: str
    effect: str
    outcome: str


class Fork(ChildSessionId):
    """The id of a fork, a text.

    Attributes:
        effects_after: The calls with effects that its source has made behind the step that the fork was made of: they
            have happened, nothing undoes them, and the fork knows nothing of them. Empty without `at`, and where the
            same request finds its fork when the source does not have the step any more.
        notice: A sentence where no worker has registered the agent that goes on with it; "" otherwise.
    """

    effects_after: tuple[CallEffect, ...]
    notice: str

    @classmethod
    def with_facts(cls, fork_id: str, effects_after: tuple[CallEffect, ...], notice: str) -> Fork:
        """The id with what its maker should know."""
        fork = cls(fork_id)
        fork.effects_after, fork.notice = effects_after, notice
        return fork

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        effects = [asdict(each) for each in self.effects_after]
        return {"session_id": str(self), "effects_after": effects, "notice": self.notice or None}


class ForkingVerbs(ClientConnection):
    """Forks sessions."""

    @verb(
        "POST", "/v1/sessions/{session_id}/fork", "fork_session", scope=Scope.ADMIN,
        headers=("expected_version", "idempotency_key"),
        body=("NewFork", "A copy of a session, and what is to be otherwise in it."),
        http={
            "at": Field(description="A step of the latest execution, or <execution>:<step>; null: as it stands."),
            "edit": Field(
                description="Objects with number and content, another text for a message (from 1), or with call_id and "
                "value, another result for a call."
            ),
            "go_on": Field(description="true: its execution goes on from there. false: it waits for a message."),
            "agent": Field(description="The agent that goes on with it; null: the same."),
            "system_prompt": Field(max_length=MOST_TEXT, description="A system prompt of its own."),
            "labels": Field(description="In place of the labels of its source."),
        },
        task=("session_id", "idempotency_key", "expected_version", "at", "edit", "go_on", "agent", "system_prompt"),
    )  # fmt: skip
    def fork(
        self,
        session_id: str,
        *,
        at: str | int | None = None,
        edit: Sequence[Edit | Mapping[str, Any]] = (),
        go_on: bool = False,
        agent: str | None = None,
        system_prompt: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        expected_version: int | None = None,
    ) -> Fork:
        """Copy a session at its last commit, or as a step has committed it; the original goes on, and nothing changes.

        The fork has the messages, the metadata, the parts and the definition. Keyed effects happen again in it. It
        belongs to no tree, and is not deleted with its source. Not copied are requests, remembered approvals,
        receivers, holds, and what no step has committed.

        Args:
            at: A step of the latest execution, from 1; `"<execution>:<step>"` for one of an earlier execution. None:
                the last commit.
            edit: What its conversation has otherwise.
            go_on: Its execution goes on from there, with the same budget, of which what was spent is spent; under an
                id of its own. False: it has no execution; send it a message.
            agent: Another agent to go on with. None: the same.
            system_prompt: A prompt of its own; "" is the agent's. None: as its source.
            labels: In place of those of its source.
            idempotency_key: The same key makes one fork of this session, however often it is asked for.
            expected_version: The version that the session must have. None: any.
        Returns:
            The id of the fork, `<root>.<32 hexadecimal digits>`, with the effects that it leaves as they are, and with
            a notice, which is also a warning, where no worker has registered `agent`.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            SessionConflict: It has another version.
            InvalidInput: There is no such step, message or call, or an argument cannot be used.
            ActionRefused: With `go_on`: no execution is under way at that point.
            IdempotencyMismatch: The key was used for another fork of this session.
            NotKept: A value of that time, which the error names, is not kept.
            StateUnreadable: A part of it cannot be read. After any of these nothing was written.
        """
        source = read_session_id(session_id)
        wanted = _Wanted(
            at=read_address(at), edits=read_edits(edit), go_on=go_on, agent=agent, prompt=system_prompt,
            labels=None if labels is None else check_labels(labels),
        )  # fmt: skip
        wanted.check(self.settings.max_message_bytes)
        fork_id = ChildSessionId.of(f"{source.partition('.')[0]}.{derive_id(idempotency_key, f'fork:{source}')}")
        key = "" if idempotency_key is None else f"{source}:{idempotency_key}"
        fingerprint = canonical_digest(["fork", key, *wanted.facts()]) if key else ""
        queue = "" if agent is None else self._queues.queue_of(agent)
        effects = tuple[CallEffect, ...]()
        try:
            copy = Copy(
                change=wanted.of, share=self._share_of(wanted.labels), queue=queue, fingerprint=fingerprint,
                past=None if wanted.at is None else self.store.sessions.parts_at(source, wanted.at),
            )  # fmt: skip
            effects = tuple(self._effects_after(source, wanted.at))  # before, since the source may have gone behind it
            self._publish(self.store.sessions.fork(source, fork_id, copy, version=expected_version))
        except CeleryAgentsError:  # also of the same request that comes again, when the source has gone on or away
            if not (made_by := self.store.sessions.made_by(fork_id) if key else ""):
                raise
            if made_by != fingerprint:
                raise _used_before(idempotency_key, source) from None
        notice = "" if queue is not None else self._queues.describe_unknown(str(agent))
        if notice:
            warnings.warn(notice, stacklevel=2)
        return Fork.with_facts(fork_id, effects, notice)

    def _share_of(self, labels: Mapping[str, str] | None) -> str | None:
        shares = None if labels is None else self._notes.shares()
        return None if labels is None or shares is None else labels.get(shares.label, "")

    def _effects_after(self, session: str, at: StepAddress | None) -> Iterator[CallEffect]:
        """The calls with effects of the steps that come after one."""
        from ..observability.timeline.making import effects_of

        if at is None:
            return
        effects = effects_of(self.store.sessions.definition(session))
        for execution_id, step in self.store.sessions.steps_after(session, at, with_calls=True):
            for call in step.tool_executions:
                effect = effects.get(call.tool_call.name, "")
                if effect != _WITHOUT_EFFECT and call.outcome not in (ToolOutcome.NOT_RUN, ToolOutcome.BLOCKED):
                    yield CallEffect(
                        execution_id=execution_id, step=step.number, call_id=call.tool_call.id,
                        tool=call.tool_call.name, effect=effect, outcome=call.outcome.value,
                    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A fork as it is asked for."""

    at: StepAddress | None
    edits: tuple[Edit, ...]
    go_on: bool
    agent: str | None
    prompt: str | None
    labels: Mapping[str, str] | None

    def check(self, limit_bytes: int) -> None:
        """Check what may be another one."""
        if self.agent is not None:
            check_agent_name(self.agent)
        if self.prompt is not None:
            check_text("system_prompt", self.prompt, limit_bytes)
        for place, each in enumerate(self.edits):
            check_size(f"edit[{place}]", len(to_json(asdict(each))), limit_bytes)

    def of(self, source: StoredSession, parts: StateParts) -> tuple[StoredSession, StateParts]:
        """Make it of a session as it is at the step, or at its last commit."""
        made, outline = source, parts.head.state
        if self.prompt is not None:
            context = outline.context.with_system_prompt(self.prompt)
            parts = parts.with_outline(outline.with_context_and_execution(context, outline.execution))
        if self.agent not in (None, source.agent):
            made = replace(made, agent=self.agent, definition=b"")
        if self.labels is not None:
            made = replace(made, labels=self.labels)
        parts = edit_entries(parts, self.edits)
        return (made, _going_on(parts)) if self.go_on else without_execution(made, parts)

    def facts(self) -> list[Any]:
        """All of it as JSON: other forks of the session have other ones."""
        return [str(self.at), [*map(asdict, self.edits)], self.go_on, self.agent, self.prompt, self.labels]


def _going_on(parts: StateParts) -> StateParts:
    """The state with its execution under a new id, in progress."""
    state = parts.head.state
    if state.execution is None or state.execution.status.is_terminal():
        raise ActionRefused(
            "the session has no execution that could go on there; fork it without go_on, and send the fork a message"
        )
    if state.execution.status is ExecutionStatus.WAITING:
        parts = parts.with_outline(state.with_execution_resumed())
    return go_on(parts, ExecutionId.generate(), utcnow())


def _used_before(key: str | None, source: str) -> IdempotencyMismatch:
    return IdempotencyMismatch(f"idempotency_key {key!r} was used for another fork of session {source}; take another")
