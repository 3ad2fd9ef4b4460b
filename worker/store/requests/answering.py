"""Answering requests of a session: all of the answers are stored, or none, and the session is woken.

    WATCH ctl, journal → open? not expired? no stop? → MULTI answers, events, index, wake · EXEC

An answer that names the newest message that was seen watches the inboxes as well, its session's and those above it.

It writes the journal and control fields only. So a step that runs meets no conflict, and a client parses no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ... import crash_points
from ...errors import InvalidInput
from ...state.execution.answers import AnswerRecord, Deny, record_answer
from ...state.execution.requests import Request
from ..children.above import sessions_above
from ..context import SessionScope, StorePart
from ..database import Changed, Command, Reply, WatchedTransaction
from ..events import event_commands
from ..inbox import InboxMessages
from ..records import StepRef
from ..waking import wake
from .index import closed_event, remove_commands
from .later import LaterMessages
from .listing import StoredRequests, journal_key
from .records import AnswerAction, AnswerResult, FoundRequest


class AnswerVerbs(StorePart):
    """Answering requests."""

    def answer(self, session_id: str, action: AnswerAction) -> AnswerResult:
        """Answer requests of a session: all of them, or none. Every answer wakes a session that waits.

        The same operation id again gets the same answer, also when the step has been committed since.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            RequestNotFound: The session never made this request, or it is too long ago.
            RequestNotOpen: It was answered, has expired or was cancelled; the error says by whom and when.
            MessagesUnseen: A message has come behind the one that the action names as seen.
            InvalidInput: `action.check` refused an answer, or its kind, digest or size does not fit, or a request needs
                to know which message was seen; the error names the request and the field.
            StoreFull: Nothing was written.
            StoreUnavailable: No answer in time. It may have been stored; asking again with the same id is safe.
        """
        if not action.answers:
            raise InvalidInput("answers", None, "give an answer for at least one request.")
        if not action.about.operation_id:  # records of workers have none, and must not look like this operation's
            raise InvalidInput("operation_id", action.about.operation_id, "give a text that names this action.")
        scope = self._context.session(session_id)
        above = () if action.seen is None else sessions_above(self._context, [session_id])[session_id]
        return scope.act_once(_AnswerAttempt(scope, action, (*above, session_id)).run, "take an answer")


@dataclass(slots=True)
class _AnswerAttempt:
    """One action and its attempts.

    Attributes:
        branch: The session, and those above it before it.
        written: What the last attempt wrote, perhaps: its reply was lost.
    """

    scope: SessionScope
    action: AnswerAction
    branch: Sequence[str]
    written: AnswerResult | None = None

    def run(self) -> AnswerResult:
        """Make one attempt."""
        try:
            return self._answer()
        except Changed:
            self.written = None
            raise

    def _answer(self) -> AnswerResult:
        scope = self.scope
        with scope.database.watch("answer.read", (scope.keys.ctl,), StoredRequests.reads(scope)) as watched:
            key = journal_key(scope, watched.replies)
            reads, inboxes = self._inboxes()
            journal, *inbox = watched.pipeline("answer.journal", [("HGETALL", key), *reads], also=(key, *inboxes))
            stored = StoredRequests.parse(scope, watched.replies, journal)
            known = {name: stored.find(name) for name in self.action.answers}
            if all(map(self._is_mine, known.values())):
                ids = tuple(found.summary.id for found in known.values())
                return self.written or AnswerResult("again", stored.control.execution, ids)
            records = self._check(stored, known)
            self._check_seen(known, inbox)
            return self._apply(stored, key, records, watched)

    def _inboxes(self) -> tuple[list[Command], list[str]]:
        """Reads of the messages that come behind the requests, and the keys to watch; none where none is compared."""
        if self.action.seen is None:
            return [], []
        branch = [self.scope.context.keys(name) for name in self.branch]
        return [read for keys in branch for read in InboxMessages.reads(keys)], [keys.inbox for keys in branch]

    def _check_seen(self, known: Mapping[str, FoundRequest], replies: Sequence[Reply]) -> None:
        """Refuse the answers of somebody who has not seen the newest message, where that is asked for."""
        seen = self.action.seen
        if seen is None:
            for name, found in known.items():
                is_denied = isinstance(self.action.answers[name], Deny)  # which does nothing that was taken back
                if found.request is not None and found.request.needs_seen and not is_denied:
                    advice = f"request {name} is answered with the number of the newest message that was seen with it."
                    raise InvalidInput("seen", None, advice)
            return
        pairs = zip(replies[::2], replies[1::2], strict=True)
        inboxes = {name: InboxMessages.parse(pair) for name, pair in zip(self.branch, pairs, strict=True)}
        LaterMessages.of(inboxes).check(self.scope.session_id, seen)

    def _is_mine(self, found: FoundRequest) -> bool:
        """Whether this very operation has answered the request."""
        answer = found.answer or found.resolution
        return answer is not None and answer.operation_id == self.action.about.operation_id

    def _check(self, stored: StoredRequests, known: Mapping[str, FoundRequest]) -> dict[str, AnswerRecord]:
        """Make the records of all answers, by request id; the first answer that does not fit refuses them all."""
        records: dict[str, AnswerRecord] = {}
        for name, found in known.items():
            refusal, request = stored.refusal(found), found.request
            if refusal is not None:
                raise refusal
            assert request is not None, "an open request is in the journal"
            if request.id in records:
                raise InvalidInput(f"answers.{name}", name, "it names a request that another entry answers already.")
            try:
                records[request.id] = self._record(stored, name, request)
            except InvalidInput as error:
                raise InvalidInput(_full_field(name, error.field), error.value, error.advice) from error
        return records

    def _record(self, stored: StoredRequests, name: str, request: Request) -> AnswerRecord:
        action, given = self.action, self.action.answers[name]
        digest = action.expect.get(name, request.digest)
        if digest != request.digest:
            advice = f"the request is about other arguments, with digest {request.digest}; look at it again."
            raise InvalidInput(f"expect.{name}", digest, advice)
        return record_answer(action.check(request, given), action.about, stored.now_ms)

    def _apply(
        self, stored: StoredRequests, key: str, records: Mapping[str, AnswerRecord], watched: WatchedTransaction
    ) -> AnswerResult:
        scope, control = self.scope, stored.control
        answered = [request for request in stored.journal.all_requests if request.id in records]
        events = [closed_event(request, records[request.id]) for request in answered]
        commands: list[Command] = [
            *(("HSETNX", key, f"t{r.index}:a{r.round}", records[r.id].to_json()) for r in answered),
            *event_commands(scope, events),
            *remove_commands(scope.keys.shard, answered),
        ]
        publish: StepRef | None = None
        wakes = control.phase == "wait" and not control.is_held(stored.now_ms)
        if wakes:
            woken = wake(scope, control, stored.now_ms, {"cause": "answer", "by": self.action.about.by})
            commands, publish = [*commands, *woken.commands], woken.publish
        self.written = AnswerResult(
            outcome="woken" if wakes else "recorded",
            execution_id=control.execution,
            requests=tuple(request.id for request in answered),
            publish=publish,
        )
        watched.commit("answer.exec", commands)
        crash_points.at("w2")
        return self.written


def _full_field(name: str, field: str) -> str:
    """Name the field of an answer as the caller knows it."""
    field = field.removeprefix("AnswerRecord.")
    if field == "answer":
        return f"answers.{name}"
    if field in ("by", "note", "operation_id") or field.startswith(("answers.", "expect.")):
        return field
    return f"answers.{name}.{field}"
