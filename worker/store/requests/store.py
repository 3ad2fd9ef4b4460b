"""The actions of clients on requests, and their reads."""

from __future__ import annotations

from ..context import StoreContext
from . import answering, listing
from .reading import StoredRequests
from .records import AnswerAction, AnswerResult, FoundRequest, OpenCount, RequestFilter, RequestPage


class RequestActions:
    """Answering and listing the requests of sessions that wait."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

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
        return answering.answer(self._context, session_id, action)

    def page(self, wanted: RequestFilter, *, limit: int = 50, cursor: str | None = None) -> RequestPage:
        """List requests, oldest first. The inbox of everybody is one read of one index, however many wait.

        Raises:
            InvalidInput: The cursor is none of ours, the limit is not 1 to 1000, or a status other than open is asked
                for without a session.
            SessionNotFound: `session_id` names no session.
        """
        return listing.page(self._context, wanted, limit, cursor)

    def find(self, session_id: str, request_id: str) -> FoundRequest:
        """Find a request by its id, or by the model's id of its call (then its newest round).

        Raises:
            SessionNotFound: There is no such session, or it has expired.
            RequestNotFound: The session never made this request, or it is too long ago.
        """
        return StoredRequests.read(self._context.session(session_id)).find(request_id)

    def count_open(self) -> OpenCount:
        """Count the open requests of all sessions; one read of the index."""
        return listing.count_open(self._context)
