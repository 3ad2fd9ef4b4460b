"""The verbs of a client about requests: the inbox, answers, remembered approvals, and tokens for others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import Field

from ...worker.errors import InvalidInput, SessionNotFound
from ...worker.requests.answers import check_answer, check_remember
from ...worker.requests.answers import check_text as check_note
from ...worker.requests.grants import Grant, grants_of
from ...worker.requests.tokens import TokenClaims, TokenPurpose, TokenSigner
from ...worker.state.execution.answers import AnswerNote, Complete, Fail, GivenAnswer, Remember
from ...worker.state.execution.requests import Request, RequestKind, RequestStatus, RequestSummary
from ...worker.state.values.ids import read_session_id
from ...worker.store.inbox import new_change_id
from ...worker.store.records import InboxKind, Operation
from ...worker.store.requests.records import AnswerAction, AnswerResult, FoundRequest, RequestPage
from .answer_inputs import (
    check_request_id,
    check_seen,
    read_answer,
    read_answers,
    read_expect,
    read_filter,
    read_ttl_ms,
)
from .connection import ClientConnection
from .inputs import check_caller, derive_id
from .verbs import BY, Scope, verb

SESSION_SCOPES: Final = ("submit", "read", "answer", "stop", "chat")
"""Scopes that the token of a session may have."""

_LONGEST_SESSION_TOKEN_MS: Final = 3_600_000


class RequestVerbs(ClientConnection):
    """Lists and answers what sessions wait for."""

    def requests(
        self,
        session_id: str | None = None,
        *,
        to: str | None = None,
        kind: RequestKind | str | None = None,
        status: RequestStatus | str | None = RequestStatus.OPEN,
        tree: bool = True,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RequestPage:
        """List requests, oldest first: the inbox of one session, or of everybody. One read gives a page.

        A loop over the page goes on with the pages that follow: `for each in client.requests()`.

        Args:
            session_id: Only of this session. None: of all sessions, and then only open ones.
            to: Only those to this addressee.
            kind: Only approvals, questions, results of services ("external") or children.
            status: Only those with this status; None: all, for one session.
            tree: With `session_id`: also of the sessions below it.
            limit: Most requests of a page, 1 to 1000.
            cursor: From the page before.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: An argument cannot be used.
        """
        session = None if session_id is None else read_session_id(session_id)
        wanted = read_filter(session, to, kind, status, tree=tree)

        def read(after: str | None) -> RequestPage:
            return self.store.requests.page(wanted, limit=limit, cursor=after).followed_by(read)

        return read(cursor)

    def request(self, session_id: str, request_id: str) -> FoundRequest:
        """Read one request in full, and what became of it.

        Args:
            request_id: Its id, or the model's id of its call; then its newest round.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            RequestNotFound: The session never made this request, or it is too long ago.
            ActionRefused: The given id is that of several calls of one answer, which have asked.
        """
        session, name = read_session_id(session_id), check_request_id(request_id)
        return self.store.requests.find(self._owner_of(session, [name]), name)

    @verb(task=("session_id", "answers", "by", "note", "expect", "remember", "seen"))
    def answer(
        self,
        session_id: str,
        answers: Mapping[str, GivenAnswer | Mapping[str, Any]],
        *,
        by: str | None = None,
        note: str = "",
        expect: str | Mapping[str, str] | None = None,
        remember: Remember | str = Remember.CALL,
        seen: int | None = None,
        idempotency_key: str | None = None,
    ) -> AnswerResult:
        """Answer requests of a session, in any order: all of the given answers are stored, or none. It wakes.

        A request of a session below this one is answered there, and only the session that asked wakes.

        Args:
            answers: By request id: `Approve(args=…)`, `Deny(reason)` or `Answer(values)`; as JSON {"approve": true}.
            by: Who answers; kept, and named to callers who answer too late.
            note: For the record; the model does not read it.
            expect: The digest of the arguments that were looked at; of several answers a dict by request id. An answer
                to a request about other arguments is refused.
            remember: "execution" or "session": later calls of the tool run without asking this addressee again.
            seen: The number of the newest message that was seen with the request, its `newest_message`. Where a further
                one has come, to the session or to one above it, nothing is stored. None: it is not compared; refused
                where the approval was asked for with `Ask(seen=True)`.
            idempotency_key: The same action again gets the same reply.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            RequestNotFound: The session never made one of the requests.
            RequestNotOpen: One was answered, has expired or was cancelled; the error says by whom and when.
            MessagesUnseen: A message has come behind `seen`; the error names both. Nothing was written.
            InvalidInput: One does not fit; the error names the request and the field. Nothing was written.
        """
        given = read_answers(answers)
        about = self._note(by, note, derive_id(idempotency_key, "operation"), _check_remember(given, remember))
        action = AnswerAction(
            given, about, expect=read_expect(expect, given), check=check_answer, seen=check_seen(seen)
        )
        return self._answer(self._owner_of(read_session_id(session_id), given), action)

    # --- remembered approvals ---------------------------------------------------------------------------------

    @verb("GET", "/v1/sessions/{session_id}/grants", "list_grants", scope=Scope.READ)
    def grants(self, session_id: str) -> tuple[Grant, ...]:
        """List the remembered approvals that count now.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        return grants_of(self.store.sessions.load(read_session_id(session_id)).state)

    def revoke_grant(self, session_id: str, grant_id: str) -> None:
        """Take a remembered approval back: from the next step on, calls of its tool ask again.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: The session has no such grant.
        """
        session = read_session_id(session_id)
        known = [grant.id for grant in self.grants(session)]
        if grant_id not in known:
            raise InvalidInput("grant_id", grant_id, f"the session has the grants {', '.join(known) or '(none)'}.")
        operation = Operation(new_change_id(), InboxKind.REVOKE_GRANT, {"grant": grant_id})
        self._act(read_session_id(session), operation)

    # --- tokens -----------------------------------------------------------------------------------------------

    def token(self, request: FoundRequest | RequestSummary | Request, ttl: timedelta | None = None) -> str:
        """Make a signed text, as a part of a link, whose bearer may answer this one request and do nothing else.

        Args:
            ttl: How long it is valid. None: as long as the request is open.
        Raises:
            ConfigurationError: The setting `token_secret` is missing.
            InvalidInput: The request is a child's, which no caller answers.
        """
        about = request.summary if isinstance(request, FoundRequest) else request
        if about.kind is RequestKind.CHILD:
            raise InvalidInput("request", about.kind.value, "the end of a child session is its answer.")
        purpose = TokenPurpose.COMPLETE if about.kind is RequestKind.EXTERNAL else TokenPurpose.ANSWER
        ttl_ms = read_ttl_ms(ttl)
        claims = TokenClaims(
            session_id=about.session_id,
            request_id=about.id,
            purpose=purpose,
            expires_at_ms=None if ttl_ms is None else self._now_ms() + ttl_ms,
        )
        return self._signer.sign(claims)

    def session_token(
        self,
        session_id: str,
        scopes: Collection[str],
        ttl: timedelta = timedelta(hours=1),
        *,
        answer_to: str | None = None,
        subject: str | None = None,
    ) -> str:
        """Make a signed text whose bearer may use the HTTP interface for this session and those below it.

        Args:
            scopes: What the bearer may do: chat, or submit (further messages), read, answer, stop.
            ttl: How long it is valid, an hour at most.
            answer_to: The addressee whose requests the bearer may answer. None: only requests without an addressee.
            subject: Who the bearer is, kept with what it does. None: nobody in particular, so that no message is its
                own; it acts under the name `answer_to`, else the session's.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            ConfigurationError: The setting `token_secret` is missing.
            InvalidInput: An unknown scope, too long a time, or a name that is empty or too long.
        """
        session = read_session_id(session_id)
        unknown = sorted(set(scopes) - set(SESSION_SCOPES))
        if unknown or not scopes:
            raise InvalidInput("scopes", sorted(scopes), f"give some of {', '.join(SESSION_SCOPES)}.")
        ttl_ms = read_ttl_ms(ttl)
        if ttl_ms is None or ttl_ms > _LONGEST_SESSION_TOKEN_MS:
            raise InvalidInput("ttl", str(ttl), "a session's token is valid for an hour at most.")
        check_caller(subject, "subject")
        check_caller(answer_to, "answer_to")
        self.store.sessions.header(session)
        claims = TokenClaims(
            session_id=session,
            request_id="",
            purpose=TokenPurpose.SESSION,
            expires_at_ms=self._now_ms() + ttl_ms,
            scopes=tuple(scope for scope in SESSION_SCOPES if scope in scopes),
            answer_to=answer_to,
            subject=subject or "",
        )
        return self._signer.sign(claims)

    def read_token(self, token: str, purpose: TokenPurpose) -> TokenClaims:
        """Check a token and return what it allows.

        Raises:
            InvalidToken: The token was forged or changed, is for something else, or its time is over.
        """
        return self._signer.read(token, purpose, self._now_ms())

    def read_session_token(self, token: str) -> TokenClaims:
        """Check a session's token and return what it allows; see `read_token`."""
        return self.read_token(token, TokenPurpose.SESSION)

    @verb("GET", "/v1/answers/{token}", "show_asked", scope=None, token=TokenPurpose.ANSWER, reads_session=False)
    def request_of_token(self, token: str) -> FoundRequest:
        """Read the request that a token answers, to show it to the token's bearer.

        Raises:
            InvalidToken: The token was forged or changed, or its time is over.
            SessionNotFound: Its session has expired.
        """
        claims = self.read_token(token, TokenPurpose.ANSWER)
        return self.store.requests.find(claims.session_id, claims.request_id)

    @verb(
        "POST", "/v1/answers/{token}", "answer_by_token", scope=None, token=TokenPurpose.ANSWER,
        body=("TokenAnswer", "The answer to the one request that a token is for."),
        http={
            "answer": Field(description='{"approve": true}, {"deny": "reason"} or {"answer": {…}}.'),
            "by": BY,
            "note": Field(),
            "seen": Field(ge=0, description="Number of the newest message that was seen with the request."),
        },
        task=("token", "answer", "by", "note", "seen"),
    )  # fmt: skip
    def answer_by_token(
        self,
        token: str,
        answer: GivenAnswer | Mapping[str, Any],
        *,
        by: str | None = None,
        note: str = "",
        seen: int | None = None,
    ) -> AnswerResult:
        """Answer the one request that a token is for. The same answer again gets the same reply.

        Args:
            seen: As of `answer`.
        Raises:
            InvalidToken: The token was forged or changed, is a completion token, or its time is over.
            RequestNotOpen: The request was answered, has expired or was cancelled.
            InvalidInput: The answer does not fit.
        """
        about = (by, note, check_seen(seen))
        return self._answer_by_token(token, TokenPurpose.ANSWER, read_answer(answer), *about)

    @verb(task=("token", "value", "by"))
    def complete(self, token: str, value: Any = None, *, by: str | None = None) -> AnswerResult:
        """Bring the result of a call whose tool has handed out this completion token. Repeating it is safe.

        Raises:
            InvalidToken: The token was forged or changed, is no completion token, or its time is over.
            RequestNotOpen: The call has a result, has expired or was cancelled.
            InvalidInput: The value is no JSON, or does not fit the call's schema.
        """
        return self._answer_by_token(token, TokenPurpose.COMPLETE, Complete(value), by)

    @verb(task=("token", "error", "by"))
    def fail(self, token: str, error: str, *, by: str | None = None) -> AnswerResult:
        """Tell that a call failed whose tool has handed out this completion token; the model reads the error.

        Raises:
            InvalidToken: The token was forged or changed, is no completion token, or its time is over.
            RequestNotOpen: The call has a result, has expired or was cancelled.
        """
        return self._answer_by_token(token, TokenPurpose.COMPLETE, Fail(error), by)

    def _answer_by_token(
        self,
        token: str,
        purpose: TokenPurpose,
        answer: GivenAnswer,
        by: str | None,
        note: str = "",
        seen: int | None = None,
    ) -> AnswerResult:
        claims = self.read_token(token, purpose)
        operation_id = derive_id(f"{claims.request_id}:{_digest(answer)}", "operation")
        about = self._note(by, note, operation_id, Remember.CALL)
        action = AnswerAction({claims.request_id: answer}, about, check=check_answer, seen=seen)
        return self._answer(claims.session_id, action)

    def _answer(self, session_id: str, action: AnswerAction) -> AnswerResult:
        result = self.store.requests.answer(session_id, action)
        self._publish(result.publish)
        return result

    def _owner_of(self, session_id: str, names: Collection[str]) -> str:
        """The session of a tree that has made these requests: this one, or one below it.

        Raises:
            InvalidInput: Several sessions have made them, and an answer is for one.
        """
        if not self.store.trees.members(session_id):
            return session_id
        found = self.requests(session_id, limit=1000)
        owners = {each.summary.session_id for each in found if each.summary.id in names}
        if not owners:  # they are closed
            tree = [session_id, *(header.session_id for header in self.store.trees.below(session_id))]
            owners = {each for each in tree if self._has_made(each, names)}
        if len(owners) > 1:
            raise InvalidInput("answers", None, f"they are for the sessions {', '.join(sorted(owners))}; answer each.")
        return next(iter(owners), session_id)

    def _has_made(self, session_id: str, names: Collection[str]) -> bool:
        try:
            found = self.requests(session_id, status=None, tree=False, limit=1000)
            return any(each.summary.id in names for each in found)
        except SessionNotFound:  # one of those below, which is gone
            return False

    def _note(self, by: str | None, note: str, operation_id: str, remember: Remember) -> AnswerNote:
        check_caller(by)
        return AnswerNote(operation_id=operation_id, by=by or "", note=check_note("note", note), remember=remember)

    @property
    def _signer(self) -> TokenSigner:
        return TokenSigner(self.settings.token_secret)


def _check_remember(answers: Mapping[str, GivenAnswer], remember: Remember | str) -> Remember:
    wanted = [check_remember(answer, remember) for answer in answers.values()]
    return wanted[0]


def _digest(answer: GivenAnswer) -> str:
    """Tell answers apart, so that the same one again is no second answer."""
    fields = {name: getattr(answer, name) for name in type(answer).__dataclass_fields__}
    text = json.dumps([type(answer).__name__, fields], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
