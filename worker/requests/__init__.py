"""Requests: what a step asks of people and services, as seen by those who ask and those who answer.

The items of a question, the check of an answer, signed tokens and remembered approvals belong here; all are values and
pure functions. The stored values themselves are in `worker.state`, their transactions in `worker.store`, and what a
step does with an answer in `worker.engine`.
"""

from __future__ import annotations

from .answers import (
    FREE_TEXT,
    QUESTIONS,
    check_answer,
    check_remember,
    check_text,
    check_values,
    is_asked_with_options,
    questions_of,
)
from .grants import ExecutionGrants, Grant, SessionGrants, find_grant, grants_of, with_grant, without_grant
from .questions import (
    MAX_FREE_TEXT_CHARS,
    UserQuestionAnswer,
    UserQuestionItem,
    UserQuestionOption,
    read_user_answers,
)
from .schemas import check_schema, schema_of
from .tokens import InvalidToken, TokenClaims, TokenPurpose, TokenSigner

__all__ = [
    "FREE_TEXT",
    "MAX_FREE_TEXT_CHARS",
    "QUESTIONS",
    "ExecutionGrants",
    "Grant",
    "InvalidToken",
    "SessionGrants",
    "TokenClaims",
    "TokenPurpose",
    "TokenSigner",
    "UserQuestionAnswer",
    "UserQuestionItem",
    "UserQuestionOption",
    "check_answer",
    "check_remember",
    "check_schema",
    "check_text",
    "check_values",
    "find_grant",
    "grants_of",
    "is_asked_with_options",
    "questions_of",
    "read_user_answers",
    "schema_of",
    "with_grant",
    "without_grant",
]
