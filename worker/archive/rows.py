"""Rows of the archive as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class RowState(StrEnum):
    """The states of a row.

    Attributes:
        PENDING: Its document is stored, and the session may still be in Redis, or be there again. It is shown where a
            mark in Redis names it.
        VALID: The session is not in Redis.
        TOMBSTONE: The session was deleted. The row keeps a slow worker from storing it again, and has no document.
    """

    PENDING = "pending"
    VALID = "valid"
    TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True, order=True)
class SessionKey:
    """The key of a row: an id may have been used again after a deletion, and each session has a row of its own.

    Attributes:
        created_ms: When the session was created (Redis ms).
    """

    session_id: str
    created_ms: int

    @property
    def name(self) -> str:
        """The name of the session where another one has its id by now."""
        return f"{self.session_id}@{self.created_ms}"


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as a writer sees it.

    Attributes:
        revision: Grows with each write.
        mark: What the mark in Redis has to equal for the row to be shown; "" for a tombstone.
    """

    revision: int
    state: RowState
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionCost:
    """The use that an execution has made of one model, without that of its children.

    Attributes:
        model: "" for what is not known by its model: rejected answers, and those that hooks and tools have asked for.
        ended_ms: When its last step was committed (Redis ms).
        steps, tokens: Committed steps, and tokens of all kinds.
        cost: US dollars, of the answers whose price is known.
        is_priced: The price of all of them is known.
    """

    session_id: str
    execution_id: str
    agent: str
    model: str
    ended_ms: int
    steps: int = 0
    tokens: int = 0
    cost: float = 0.0
    is_priced: bool = True

    @property
    def execution(self) -> tuple[str, str]:
        """Session and execution, which tell it from others: a fork or a copy may have one of the same id."""
        return self.session_id, self.execution_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedSession:
    """The facts of a session by which it is found and listed.

    Attributes:
        mark: Of its document; see `StoredRow`.
        status: Of its last execution, as a listing shows it.
        reason: Why that ended; "" when nothing is recorded.
        error: Its last error; "" for none.
        parent_id, forked_from: "" for none.
        updated_ms: Its last update (Redis ms), by which it is listed.
        first_words: The beginning of its first message.
        labels: What the session was labelled with.
        steps, tokens, cost: Of its last execution; the cost is None when the price is not known.
        size: Bytes of its document as stored; 0 before it is.
        expires_ms: When the row may be removed; None: never.
    """

    key: SessionKey
    mark: str
    agent: str
    status: str
    updated_ms: int
    reason: str = ""
    error: str = ""
    execution_id: str = ""
    parent_id: str = ""
    forked_from: str = ""
    version: int = 0
    first_words: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    steps: int = 0
    tokens: int = 0
    cost: float | None = None
    size: int = 0
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """All that is written for a session, besides its state and revision.

    Attributes:
        document: The session, as plain bytes.
        text: What was said in it, whose words can be searched; the beginning of it counts.
        costs: Of its executions.
    """

    session: ArchivedSession
    document: bytes = field(repr=False)
    text: str = field(default="", repr=False)
    costs: tuple[ExecutionCost, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A row as a search finds it.

    Attributes:
        place: Its place in the order of the search, for the cursor behind it.
        is_newest: No other session has had its id since.
    """

    session: ArchivedSession
    row: StoredRow
    place: int
    is_newest: bool

    @property
    def name(self) -> str:
        """The name by which it is read: its id, or `<id>@<created>` where another session has had the id since."""
        key = self.session.key
        return key.session_id if self.is_newest else key.name


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the order of a search, newest first: by update, then by row.

    Attributes:
        place: Rows of the same time are behind it when their place is less. None: all rows of that time are.
    """

    updated_ms: int
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The sessions that are wanted; None and empty values do not restrict.

    Attributes:
        labels: All of them have to be there.
        text, error: Words that all have to occur in what was said, or in the last error; a word matches by its
            beginning, whatever its case and accents are.
        since_ms, until_ms: Bounds of the last update, both inclusive.
        after: Begin behind this place.
        limit: Most rows of the page.
    """

    status: str | None = None
    agent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    text: str = ""
    error: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    after: Cursor | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a search.

    Attributes:
        after: Where the next page begins; None: nothing follows.
    """

    sessions: tuple[FoundSession, ...]
    after: Cursor | None


class CostBy(StrEnum):
    """By what costs are added up; by a label, see `AgentClient.costs`."""

    AGENT = "agent"
    MODEL = "model"
    DAY = "day"
    LABEL = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSum:
    """A sum of costs.

    Attributes:
        name: The agent, the model, the day in UTC as `2026-09-21`, or the value of the label; "" for none.
        executions: Each counted once.
        steps, tokens: Committed steps, and tokens of all kinds.
        cost: US dollars, of the answers whose price is known.
        unpriced: Executions with an answer whose price is not known.
    """

    name: str
    executions: int
    steps: int
    tokens: int
    cost: float
    unpriced: int

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFacts:
    """The archive in figures.

    Attributes:
        size: Bytes of all documents as stored.
        oldest_ms, newest_ms: Bounds of the last updates of its sessions; None where it has none.
    """

    sessions: int
    pending: int
    tombstones: int
    size: int
    oldest_ms: int | None
    newest_ms: int | None
