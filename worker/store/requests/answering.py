"""Answering requests of a session: all of the answers are stored, or none, and the session is woken.

    WATCH ctl, journal → open? not expired? no stop? → MULTI answers, events, index, wake · EXEC

It writes the journal and control fields only. So a step that runs meets no conflict, and a client parses no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ... import crash_points
from ...errors import InvalidInput
from ...state.execution.answers import AnswerRecord, record_answer
from ...state.execution.requests import Request
from ..context import SessionScope, StorePart
from ..database import Changed, Command, WatchedTransaction
from ..events import event_commands
from ..records import StepRef
from ..waking import wake
from .index import closed_event, remove_commands
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
            InvalidInput: `action.check` refused an answer, or its kind, digest or size does not fit; the error names
                the request and the field.
            StoreFull: Nothing was written.
            StoreUnavailable: No answer in time. It may have been stored; asking again with the same id is safe.
        """
        if not action.answers:
            raise InvalidInput("answers", None, "give an answer for at least one request.")
        if not action.about.operation_id:  # records of workers have none, and must not look like this operation's
            raise InvalidInput("operation_id", action.about.operation_id, "give a text that names this action.")
        scope = self._context.session(session_id)
        return scope.act_once(_AnswerAttempt(scope, action).run, "take an answer")


@dataclass(slots=True)
class _AnswerAttempt:
    """One action and its attempts.

    Attributes:
        written: What the last attempt wrote, perhaps: its reply was lost.
    """

    scope: SessionScope
    action: AnswerAction
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
            (journal,) = watched.pipeline("answer.journal", [("HGETALL", key)], also=(key,))
            stored = StoredRequests.parse(scope, watched.replies, journal)
            known = {name: stored.find(name) for name in self.action.answers}
            if all(map(self._is_mine, known.values())):
                ids = tuple(found.summary.id for found in known.values())
                return self.written or AnswerResult("again", stored.control.execution, ids)
            records = self._check(stored, known)
            return self._apply(stored, key, records, watched)

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
